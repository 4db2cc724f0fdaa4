"""Details that a checkpoint records in addition to CRIU's images, read from a live program."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dump_targets import CRIU, observe_live, target_of
from msgspec.structs import replace
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.ops.context import Context
from crckpt.ops.dump.details import Answers, describe_checkpoint, read_details
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.plan import PlannedDump
from crckpt.ops.dump.request import DumpRequest

FREEZE = (datetime(2026, 1, 2, tzinfo=UTC), 12.5, 100.0)
OPEN_STATEMENTS = """
os.chdir({0!r})
log = os.open('log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b'x' * 77)
cut = os.open('cut', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(cut, b'x' * 50)
os.truncate('cut', 10)
plain = os.open('plain', os.O_WRONLY | os.O_CREAT)
reading, writing = os.pipe()
os.close(writing)
"""


@pytest.fixture
def target(context: Context, tmp_path: Path) -> Iterator[DumpTarget]:
    """A program with a log, a log that somebody has truncated, and a pipe that nobody else has open."""
    with program(f"{OPEN_STATEMENTS.format(str(tmp_path))}{WAIT_STATEMENTS}") as process:
        request = DumpRequest(str(process.pid), stop=True, note="a note")
        yield target_of(replace(context, config_digest="cafe"), observe_live(read(process.pid)), request)


def details_of(target: DumpTarget) -> Any:
    """The recorded details, as the checkpoint contains them."""
    return json.loads(json.dumps(read_details(PlannedDump(target), Answers({target.pid: {}}))))


def closed_pipe(target: DumpTarget) -> int:
    """The inode of the pipe whose other end the program closed."""
    (pipe,) = {found.target for found in target.observed.descriptors if found.fd > 2 and "pipe:" in found.target}
    return int(pipe[6:-1])


def test_command_line_and_log_sizes_are_recorded(target: DumpTarget, tmp_path: Path) -> None:
    details = details_of(target)
    (process,) = details["processes"]
    assert process["pid"] == target.pid
    assert process["command_line"][-2] == "-c"
    assert process["directory"] == str(tmp_path)
    assert process["uids"] == [os.getuid()] * 4
    # Its position is beyond the end: no position means anything there.
    assert details["append_sizes"] == {f"{tmp_path}/log": 77}
    assert details["schema"] == 1


def test_checkpoint_description_has_the_requested_job_note_and_times(target: DumpTarget) -> None:
    new = describe_checkpoint(PlannedDump(target), "", {"schema": 1}, *FREEZE)
    assert (new.job, new.note, new.stopped, new.config_digest) == ("job", "a note", True, "cafe")
    assert (new.created, new.frozen_ms, new.dump_ms) == FREEZE
    assert (new.host.criu_version, new.host.criu_digest) == (CRIU.version, CRIU.digest)
    (task,) = new.tree
    assert (task.pid, task.threads) == (target.pid, (target.pid,))
    assert (new.parent, new.base) == (None, None)
    assert json.loads(new.details) == {"schema": 1, "closed_pipes": [closed_pipe(target)]}


def test_pid_inside_the_namespace_is_recorded(target: DumpTarget) -> None:
    """CRIU's images contain the same PID."""
    root = replace(target.observed.tree.root, ns_pids=(target.pid, 7))
    observed = replace(target.observed, tree=replace(target.observed.tree, root=root, processes=(root,)))
    inside = replace(target, observed=observed)
    assert [task.pid for task in describe_checkpoint(PlannedDump(inside), "", {}, *FREEZE).tree] == [7]
    (process,) = details_of(inside)["processes"]
    assert process["pid"] == 7
