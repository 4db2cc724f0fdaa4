"""Which terminal a word names."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.errors import TargetNotRunning, UsageError
from crckpt.host.terminal.protocol import HeldTerminal, HeldTree
from crckpt.host.terminal.relay import FoundTerminal
from crckpt.ops.attach import pick_terminal


def terminal(root: int, job: str, checkpoint: str) -> FoundTerminal:
    tree = HeldTree(root, 1, root, "python3", job, checkpoint * 16, "/var/log/crckpt/job.log")
    return FoundTerminal(HeldTerminal(root + 1, tree), Path("/run/terminal"))


TERMINALS = (terminal(100, "trainer", "abcd"), terminal(200, "worker", "1234"), terminal(300, "worker", "5678"))


@pytest.mark.parametrize(("name", "root"), [("trainer", 100), ("200", 200), ("5678", 300), ("abcdabcdabcd", 100)])
def test_a_job_a_pid_or_an_id_names_one(name: str, root: int) -> None:
    assert pick_terminal(name, TERMINALS).terminal.tree.root == root


def test_the_only_one_needs_no_name() -> None:
    assert pick_terminal(None, TERMINALS[:1]) is TERMINALS[0]


@pytest.mark.parametrize("name", [None, "worker"])
def test_of_several_the_pids_are_said(name: str | None) -> None:
    with pytest.raises(UsageError, match=r"worker \(PID 200\), worker \(PID 300\)") as raised:
        pick_terminal(name, TERMINALS)
    assert "crckpt attach " in raised.value.hint


@pytest.mark.parametrize("name", ["nothing", "abc", "99"])
def test_what_has_none_is_said(name: str) -> None:
    with pytest.raises(TargetNotRunning, match="has no terminal to attach to") as raised:
        pick_terminal(name, TERMINALS)
    assert "trainer (PID 100)" in raised.value.hint


def test_without_any_it_is_said_how_to_get_one() -> None:
    with pytest.raises(TargetNotRunning) as raised:
        pick_terminal(None, ())
    assert "--tty new" in raised.value.hint
