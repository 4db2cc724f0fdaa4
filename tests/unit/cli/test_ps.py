"""`crckpt ps` lists processes and locks, and ends trackers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from documents.json_documents import check
from keepers import KEEPER, answering, leave_socket, listening, trackable
from msgspec.structs import replace

from crckpt.cli.app import run
from crckpt.host import proc
from crckpt.tracking.keeper.protocol import Answer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def root() -> Iterator[proc.Process]:
    """A program that a keeper may track."""
    with trackable() as found:
        yield found


def description(root: proc.Process) -> Answer:
    """The answer of the keeper, which this process plays."""
    keeper = replace(KEEPER, pid=os.getpid(), root=root.pid, comm="trainer", tracker="soft-dirty", why="it works")
    return Answer(keeper=replace(keeper, base="/store/tmp/rounds/2"))


def test_command_ps_lists_a_tracked_tree_with_the_usage_of_its_tracker(
    root: proc.Process, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(root) as listener, answering(listener, description(root)):
        assert run(["ps"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [str(os.getpid())])
    assert row.split()[1:4] == ["tracker", str(root.pid), "root"]
    assert "trainer" in row
    assert row.endswith("round 2; tracker: soft-dirty (it works)")
    with listening(root) as listener, answering(listener, description(root)):
        assert run(["ps", "--json"]) == 0
    document = capsys.readouterr().out
    check(document)
    (listed,) = (each for each in json.loads(document)["result"]["processes"] if each["tree"] == root.pid)
    assert listed["kind"] == "tracker"
    (found,) = (each for each in json.loads(document)["result"]["trackers"] if each["root"] == root.pid)
    assert (found["comm"], found["tracker"]) == ("trainer", "soft-dirty")
    assert found["usage"]["memory_bytes"] > 0


def test_command_ps_ends_a_tracker(root: proc.Process, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(root) as listener, answering(listener, description(root), Answer()):
        assert run(["ps", "--end", str(root.pid)]) == 0
    assert capsys.readouterr().out.endswith("crckpt no longer tracks these trees\n")
    assert run(["ps", "--end", str(root.pid)]) == 2
    assert f"the tree of PID {root.pid} is not tracked" in capsys.readouterr().err


def test_command_ps_forgets_a_killed_tracker(root: proc.Process, capsys: pytest.CaptureFixture[str]) -> None:
    leave_socket(root)
    assert run(["ps", "--end", str(root.pid)]) == 0
    assert capsys.readouterr().out == "no tree is tracked\n"
