"""The terminal that an argument names."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from crckpt.errors import HostCannot, TargetNotRunning, UsageError
from crckpt.helper.terminal.protocol import HeldTerminal, HeldTree
from crckpt.helper.terminal.relay import FoundTerminal
from crckpt.ops.attach import attach, pick_terminal


def terminal(root: int, job: str, checkpoint: str) -> FoundTerminal:
    tree = HeldTree(root, 1, root, "python3", job, checkpoint * 16, "/var/log/crckpt/job.log")
    return FoundTerminal(HeldTerminal(root + 1, tree), Path("/run/terminal"))


TERMINALS = (terminal(100, "trainer", "abcd"), terminal(200, "worker", "1234"), terminal(300, "worker", "5678"))


@pytest.mark.parametrize(("name", "root"), [("trainer", 100), ("200", 200), ("5678", 300), ("abcdabcdabcd", 100)])
def test_terminal_is_found_by_job_pid_or_id(name: str, root: int) -> None:
    assert pick_terminal(name, TERMINALS).terminal.tree.root == root


def test_attach_needs_no_name_if_there_is_a_single_terminal() -> None:
    assert pick_terminal(None, TERMINALS[:1]) is TERMINALS[0]


@pytest.mark.parametrize("name", [None, "worker"])
def test_attach_by_an_ambiguous_name_lists_the_pids(name: str | None) -> None:
    with pytest.raises(UsageError, match=r"worker \(PID 200\), worker \(PID 300\)") as raised:
        pick_terminal(name, TERMINALS)
    assert "crckpt attach " in raised.value.hint


def test_second_client_is_refused_before_the_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    held = replace(TERMINALS[0].terminal, attached=77)
    monkeypatch.setattr("crckpt.ops.attach.find_terminals", lambda: (replace(TERMINALS[0], terminal=held),))
    announced: list[HeldTerminal] = []
    with pytest.raises(HostCannot, match="process 77 is attached already") as raised:
        attach("trainer", 0, None, announced.append)
    assert raised.value.hint.endswith("or end it: kill 77")
    assert announced == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (None, "restore: crckpt restore JOB --tty new"),
        ("99", "crckpt dump 99 JOB --stop; crckpt restore JOB --tty new"),
        ("a b", "crckpt restore 'a b' --tty new; if it runs, first: crckpt dump PID 'a b' --stop"),
    ],
)
def test_hint_is_the_command_that_gives_a_terminal(name: str | None, command: str) -> None:
    with pytest.raises(TargetNotRunning) as raised:
        pick_terminal(name, ())
    assert raised.value.hint.endswith(command)


@pytest.mark.parametrize("name", ["nothing", "abc", "99"])
def test_attach_to_a_program_without_a_held_terminal_is_refused(name: str) -> None:
    with pytest.raises(TargetNotRunning, match="has no terminal to attach to") as raised:
        pick_terminal(name, TERMINALS)
    assert "trainer (PID 100)" in raised.value.hint
