"""Terminals outside the tree, and whose they are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from restore_plans import only_blocker

from crckpt.images.core import Credentials
from crckpt.images.tree import OpenDescriptor
from crckpt.images.tty import Terminal, TerminalInfo
from crckpt.preflight.restore.checks import judge_restore
from crckpt.preflight.restore.descriptors import (
    find_needed_numbers,
    find_terminal_files,
    find_terminal_leader,
)
from crckpt.preflight.restore.host import HostState, PlannedRestore, TerminalChoice


def test_terminal_from_outside_the_tree_is_needed_for_a_restore(
    planned_restore: PlannedRestore, host: HostState
) -> None:
    """The images have both sides of a pty; without the master it is a terminal outside the tree."""
    slaves = tuple(end for end in planned_restore.tree.terminals if not end.is_master)
    outside = replace(planned_restore, tree=replace(planned_restore.tree, terminals=slaves))
    assert judge_restore(outside, host).needs_terminal
    assert only_blocker(judge_restore(outside, host)).startswith("terminal: ")
    verdict = judge_restore(replace(outside, has_terminal=True), host)
    assert (verdict.blockers, verdict.needs_terminal) == ((), True)


@pytest.mark.parametrize(("uid", "owner", "refused"), [(0, 0, 0), (33, 33, 0), (33, 0, 1), (33, 34, 1), (33, None, 0)])
def test_terminal_of_another_user_is_refused(
    planned_restore: PlannedRestore, host: HostState, uid: int, owner: int | None, refused: int
) -> None:
    """The program could type commands that the shell of the terminal's owner would run."""
    slaves = tuple(end for end in planned_restore.tree.terminals if not end.is_master)
    credentials = Credentials(uid, uid, uid, uid, ())
    threads = tuple(
        replace(thread, core=replace(thread.core, credentials=credentials))
        for thread in planned_restore.tree.root.threads
    )
    tree = replace(
        planned_restore.tree, terminals=slaves, processes=(replace(planned_restore.tree.root, threads=threads),)
    )
    found = judge_restore(replace(planned_restore, tree=tree, has_terminal=True, terminal_owner=owner), host).blockers
    assert [finding.key for finding in found if finding.key.startswith("terminal")] == ["terminal-of-another"] * refused


@pytest.mark.parametrize(
    ("terminals", "numbers"),
    [
        ((TerminalInfo(6, "pty", 0, 3), TerminalInfo(7, "pty", 0, 3)), {3}),
        ((TerminalInfo(6, "pty", 0, 3), TerminalInfo(9, "pty", 0, 4)), {4}),
        ((TerminalInfo(6, "pty", 0, 3, is_hung_up=True),), {3}),
        ((TerminalInfo(5, "console", 0, None),), set()),
    ],
    ids=["both sides", "one outside", "hung up", "console"],
)
def test_terminal_numbers_in_use_are_blockers(
    planned_restore: PlannedRestore, host: HostState, terminals: tuple[TerminalInfo, ...], numbers: set[int]
) -> None:
    restore = replace(planned_restore, tree=replace(planned_restore.tree, terminals=terminals), has_terminal=True)
    assert find_needed_numbers(restore.tree) == numbers
    verdict = judge_restore(restore, replace(host, terminals=frozenset({3, 4})))
    words = [f"another program uses terminal /dev/pts/{number}" for number in numbers]
    assert [finding.what for finding in verdict.blockers] == words
    assert verdict.is_in_use == bool(numbers)


@pytest.mark.parametrize(
    ("terminal", "needed"),
    [
        (TerminalInfo(6, "pty", 0, 3), True),
        (TerminalInfo(6, "pty", 0, 3, is_hung_up=True), False),
        (TerminalInfo(5, "current", 0, None), True),
        (TerminalInfo(5, "current", 100, None), False),
        (TerminalInfo(5, "console", 0, None), False),
        (TerminalInfo(5, "virtual console", 0, None), False),
    ],
)
def test_only_an_outside_terminal_is_needed(
    planned_restore: PlannedRestore, host: HostState, terminal: TerminalInfo, needed: bool
) -> None:
    """A console has a name; other terminals have their session in the tree or were hung up."""
    tree = replace(planned_restore.tree, terminals=(terminal,))
    assert judge_restore(replace(planned_restore, tree=tree), host).needs_terminal == needed


def test_outside_terminals_can_be_replaced(planned_restore: PlannedRestore) -> None:
    """Terminals inside the tree and hung-up ones stay."""
    infos = (
        TerminalInfo(6, "pty", 0, 3),
        TerminalInfo(7, "pty", 0, 3),
        TerminalInfo(8, "pty", 90, 4),
        TerminalInfo(10, "pty", 0, 5, is_hung_up=True),
        TerminalInfo(11, "current", 90, None),
        TerminalInfo(12, "current", 80, None),
    )
    files = tuple(Terminal(info.id + 100, info.id, 2, None) for info in infos)
    found = find_terminal_files(replace(planned_restore.tree, terminals=infos, files=files))
    assert found.infos == {8, 11}
    assert found.files == {108, 111}


@pytest.mark.parametrize(("session", "fd"), [(100, 3), (99, None)], ids=["leads", "led from outside"])
def test_leader_of_an_outside_terminal_is_found(planned_restore: PlannedRestore, session: int, fd: int | None) -> None:
    """CRIU does not make the terminal the controlling one of its leader."""
    info = TerminalInfo(8, "pty", session, 4, group=105)
    terminal = OpenDescriptor(3, Terminal(1, 8, 2, None), close_on_exec=False)
    root = replace(planned_restore.tree.root, pid=100, sid=100, descriptors=(terminal,))
    found = find_terminal_leader(replace(planned_restore.tree, terminals=(info,), processes=(root,)))
    assert found == (None if fd is None else (100, fd, 105))


@pytest.mark.parametrize(
    ("tty", "keys"), [("ours", ["terminal-group-outside"]), ("new", []), ("null", []), ("file", [])]
)
def test_old_terminal_is_not_needed_if_a_new_one_or_a_file_replaces_it(
    planned_restore: PlannedRestore, host: HostState, tty: TerminalChoice, keys: list[str]
) -> None:
    """The old terminal is not needed in a new PID namespace either.

    There CRIU would need the group of the restoring process.
    """
    slaves = tuple(end for end in planned_restore.tree.terminals if not end.is_master)
    tree = replace(planned_restore.tree, terminals=slaves, processes=(replace(planned_restore.tree.root, pgid=1),))
    wanted = replace(planned_restore, tree=tree, has_terminal=True, tty=tty, new_pid_namespace=True)
    assert [finding.key for finding in judge_restore(wanted, host).blockers] == keys
    assert judge_restore(wanted, host).needs_terminal == (tty in ("ours", "new"))
