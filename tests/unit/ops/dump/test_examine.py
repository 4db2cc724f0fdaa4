"""The examination of a tree before the freeze: the command of its dump, and whether its root is still alive."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import observations
import pytest
from dump_targets import CRIU, observe_live, target_of
from msgspec.structs import replace
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.criu.command import Paths
from crckpt.errors import DumpFailed, PreflightRefused, TargetNotRunning, UsageError
from crckpt.host.proc import Tree
from crckpt.host.target import pinned
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import DumpTarget, examine
from crckpt.ops.dump.lineage import Lineage
from crckpt.ops.dump.plan import PlannedDump
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.dump.result import LineageSummary
from crckpt.tracking.preload.library import ENTERED

PATHS = Paths(Path("/images"), Path("/work"))


def words(target: DumpTarget, lineage: Lineage | None = None) -> tuple[str, ...]:
    return PlannedDump(target, lineage).command(PATHS)


@pytest.mark.parametrize("stop", [True, False])
def test_tree_is_left_running_without_stop(context: Context, stop: bool) -> None:
    command = words(target_of(context, request=DumpRequest("100", stop=stop)))
    assert ("--leave-running" in command) is not stop
    assert command[command.index("--tree") + 1] == "100"
    assert str(CRIU.path) in command


def test_root_has_its_namespace_pid_in_the_command(context: Context) -> None:
    root = replace(observations.ROOT, ns_pids=(100, 1))
    target = target_of(context, replace(observations.PLAIN, tree=Tree(root, (root,))))
    inside = replace(target, plan=replace(target.plan, enter=("pid", "mnt")))
    assert words(target)[words(target).index("--tree") + 1] == "100"
    assert words(inside)[words(inside).index("--tree") + 1] == "1"
    assert inside.plan.runs_apart


def test_tracked_dump_uses_the_settings_of_its_tracker(context: Context) -> None:
    lineage = Lineage(LineageSummary("", ""))
    target = target_of(context)
    assert "--track-mem" not in words(target, lineage)
    lineage.tracks = True
    lineage.environment = ("env", "LD_PRELOAD=/lib.so")
    assert words(target, lineage)[:2] == ("env", "LD_PRELOAD=/lib.so")
    assert "--track-mem" in words(target, lineage)


def test_dump_notices_that_the_root_process_has_ended(context: Context) -> None:
    with program(WAIT_STATEMENTS) as process, pinned(str(process.pid)) as root:
        target = replace(target_of(context, observe_live(read(process.pid))), root=root)
        target.check_root()
        had_ended = target.root_has_ended
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        target.check_root()  # a zombie keeps its PID
        assert (had_ended, target.root_has_ended) == (False, True)
        process.wait()
        with pytest.raises(TargetNotRunning, match=f"PID {process.pid} ended"):
            root.check()


def test_invalid_target_is_refused(context: Context) -> None:
    with pytest.raises(UsageError, match="99999999"):
        examine(DumpRequest("99999999"), context)
    with pytest.raises(PreflightRefused, match="crckpt"):
        examine(DumpRequest(str(os.getpid())), context)


@pytest.mark.parametrize(
    ("log", "has_entered"),
    [("", False), (ENTERED, True), (f"{ENTERED}\n(00.01) Dumping mountpoints\n", False)],
    ids=["not entered", "entered", "left again"],
)
def test_criu_must_confirm_that_it_entered_the_mounts(context: Context, log: str, has_entered: bool) -> None:
    target = target_of(context)
    target.check_entered(log)
    inside = replace(target, plan=replace(target.plan, enter=("mnt",)))
    with nullcontext() if has_entered else pytest.raises(DumpFailed, match="did not enter the mounts of the tree"):
        inside.check_entered(log)
