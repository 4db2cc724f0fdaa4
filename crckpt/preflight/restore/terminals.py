"""Check the terminals of a checkpoint before a restore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.images.terminal_files import TerminalFiles
from crckpt.images.tree import ImageTree, Thread
from crckpt.images.tty import Terminal, TerminalInfo
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.plan import PlannedRestore

# Terminals that remain after the program has ended, for the next user who logs in there.
_CONSOLES = ("console", "virtual console", "external", "serial")


def needs_terminal(tree: ImageTree) -> bool:
    """Return whether one of the tree's terminals is outside it. Source: criu/tty.c:1358, tty_find_restoring_task."""
    # CRIU opens consoles by their names, and /dev/tty in its session. The images name no session outside the tree.
    return bool(_find_outside(tree)) or any(
        terminal.kind == "current" and not terminal.session for terminal in tree.terminals
    )


def find_terminal_files(tree: ImageTree) -> TerminalFiles:
    """Find the open files that are terminals outside the tree, which `--tty null` and `--tty FILE` replace."""
    outside = _find_outside(tree)
    sessions = {0, *(terminal.session for terminal in outside)}
    current = {each.id for each in tree.terminals if each.kind == "current" and each.session in sessions}
    infos = frozenset({*(terminal.id for terminal in outside), *current})
    files = frozenset(file.id for file in tree.files if isinstance(file, Terminal) and file.info_id in infos)
    return TerminalFiles(files, infos)


def _find_outside(tree: ImageTree) -> tuple[TerminalInfo, ...]:
    """Find the pseudoterminals whose masters are outside. CRIU makes another master for one that was hung up."""
    masters = {terminal.index for terminal in tree.terminals if terminal.is_master}
    slaves = (each for each in tree.terminals if each.kind == "pty" and not each.is_hung_up)
    return tuple(each for each in slaves if each.index not in masters)


class TerminalLeader(Struct, frozen=True):
    """The session leader in the tree whose controlling terminal is outside it, with a descriptor `fd` of the terminal.

    `group` is the process group that gets what is typed.
    """

    pid: int
    fd: int
    group: int


def find_terminal_leader(tree: ImageTree) -> TerminalLeader | None:
    """Find the session leader of a terminal outside the tree. CRIU does not give it its controlling terminal."""
    infos = {each.id: each for each in _find_outside(tree)}
    for process in tree.processes:
        for opened in process.descriptors if process.pid == process.sid else ():
            info = infos.get(opened.file.info_id) if isinstance(opened.file, Terminal) else None
            if info is not None and info.session == process.pid:
                return TerminalLeader(process.pid, opened.fd, info.group or process.pgid)
    return None


def find_needed_numbers(tree: ImageTree) -> frozenset[int]:
    """Return the N of each /dev/pts/N that CRIU opens again: not of a terminal outside the tree."""
    masters = {terminal.index for terminal in tree.terminals if terminal.is_master}
    return frozenset(
        terminal.index
        for terminal in tree.terminals
        if terminal.index is not None and (terminal.index in masters or terminal.is_hung_up)
    )


def judge_terminals(planned: PlannedRestore, host: HostState) -> Iterator[Finding]:
    """Find a terminal that is missing, in use, or that the restored program must not get."""
    root = planned.tree.root
    for number in sorted(find_needed_numbers(planned.tree) & host.terminals):
        yield cause("terminal-taken").finding(index=number)
    if planned.tty in ("null", "file"):
        if find_terminal_files(planned.tree).files & planned.tree.polled:
            yield cause("terminal-polled").finding()
    elif needs_terminal(planned.tree):
        # Another user's program could type into it (TIOCSTI), for the shell that reads next.
        others = _users(planned.tree.threads) - {0, planned.terminal_owner}
        if not planned.has_terminal:
            yield cause("terminal").finding()
        elif planned.terminal_owner is not None and others:
            yield cause("terminal-of-another").finding(user=min(others), owner=planned.terminal_owner)
        # CRIU puts its own group in the place of the shell's, and has none in a new PID namespace that it entered.
        is_entered = planned.new_pid_namespace and planned.tty == "ours"
        if planned.has_terminal and is_entered and root.pgid != root.pid:
            yield cause("terminal-group-outside").finding()
    if not planned.may_have_consoles:
        yield from _find_other_users_consoles(planned.tree, host)


def _find_other_users_consoles(tree: ImageTree, host: HostState) -> Iterator[Finding]:
    """Find consoles that CRIU would open as root for a program of another user than the one they belong to now."""
    # A program with a console open reads what is typed there; with a controlling terminal it can type (TIOCSTI).
    terminals = {terminal.id: terminal for terminal in tree.terminals}
    found: dict[str, Finding] = {}
    for process in tree.processes:
        for file in {id(opened.file): opened.file for opened in process.descriptors}.values():
            if not isinstance(file, Terminal):
                continue
            terminal, state = terminals.get(file.info_id), host.files.get(file.path)
            if terminal is None or state is None or terminal.kind not in _CONSOLES:
                continue
            others = _users(process.threads) - {0, state.owner}
            is_harmless = file.flags & os.O_ACCMODE == os.O_WRONLY and not terminal.session
            if others and not is_harmless:
                finding = cause("console-of-another").finding(path=file.path, user=min(others), owner=state.owner)
                found.setdefault(file.path, finding)
    yield from found.values()


def _users(threads: Iterable[Thread]) -> set[int]:
    """Return the real and effective user ids of these threads."""
    known = (thread.core.credentials for thread in threads)
    return {user for each in known if each is not None for user in (each.uid, each.euid)}
