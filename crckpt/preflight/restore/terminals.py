"""Check the terminals of a checkpoint before a restore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.images.terminal_files import TerminalFiles
from crckpt.images.tree import ImageProcess, ImageTree
from crckpt.images.tty import Terminal
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.plan import PlannedRestore

# Terminals that remain after the program has ended, for the next user who logs in there.
_CONSOLES = ("console", "virtual console", "external", "serial")


def needs_terminal(tree: ImageTree) -> bool:
    """Return whether one of the tree's terminals is outside it. Source: criu/tty.c:1358, tty_find_restoring_task."""
    masters = {terminal.index for terminal in tree.terminals if terminal.is_master}
    # CRIU makes another master for a terminal that was hung up.
    slaves = {terminal.index for terminal in tree.terminals if terminal.kind == "pty" and not terminal.is_hung_up}
    # CRIU opens consoles by their names, and /dev/tty in its session. The images name no session outside the tree.
    return bool(slaves - masters) or any(
        terminal.kind == "current" and not terminal.session for terminal in tree.terminals
    )


def find_terminal_files(tree: ImageTree) -> TerminalFiles:
    """Find the open files that are terminals outside the tree, which `--tty null` and `--tty FILE` replace."""
    masters = {terminal.index for terminal in tree.terminals if terminal.is_master}
    outside = {
        terminal.id: terminal.session
        for terminal in tree.terminals
        if terminal.kind == "pty" and not terminal.is_hung_up and terminal.index not in masters
    }
    sessions = {0, *outside.values()}
    current = {each.id for each in tree.terminals if each.kind == "current" and each.session in sessions}
    infos = frozenset({*outside, *current})
    files = frozenset(file.id for file in tree.files if isinstance(file, Terminal) and file.info_id in infos)
    return TerminalFiles(files, infos)


class TerminalLeader(Struct, frozen=True):
    """The session leader in the tree whose controlling terminal is outside it, with a descriptor `fd` of the terminal.

    `group` is the process group that gets what is typed.
    """

    pid: int
    fd: int
    group: int


def find_terminal_leader(tree: ImageTree) -> TerminalLeader | None:
    """Find the session leader of a terminal outside the tree. CRIU does not give it its controlling terminal."""
    outside = find_terminal_files(tree).infos
    infos = {each.id: each for each in tree.terminals if each.id in outside and each.kind == "pty"}
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


def find_blockers(planned: PlannedRestore, host: HostState) -> Iterator[Finding]:
    """Find a terminal that is missing, in use, or that the restored program must not get."""
    for number in sorted(find_needed_numbers(planned.tree) & host.terminals):
        yield cause("terminal-taken").finding(index=number)
    if needs_terminal(planned.tree) and planned.tty not in ("null", "file"):
        if not planned.has_terminal:
            yield cause("terminal").finding()
        else:
            yield from _find_other_users_terminal(planned)
            # CRIU puts its own group in the place of the shell's, and has none in a new PID namespace.
            if planned.new_pid_namespace and planned.tree.root.pgid != planned.tree.root.pid:
                yield cause("terminal-group-outside").finding()
    if planned.tty in ("null", "file") and find_terminal_files(planned.tree).files & planned.tree.polled:
        yield cause("terminal-polled").finding()
    if not planned.may_have_consoles:
        yield from _find_other_users_consoles(planned.tree, host)


def find_warnings(planned: PlannedRestore) -> Iterator[Finding]:
    """Find a tree that gets a session from outside its new PID namespace: CRIU cannot dump it there."""
    joins = planned.tree.root.sid != planned.tree.root.pid and planned.tty not in ("null", "file")
    if planned.new_pid_namespace and joins and needs_terminal(planned.tree):
        yield cause("session-left-outside").finding()


def _find_other_users_terminal(planned: PlannedRestore) -> Iterator[Finding]:
    """Find a terminal of another user: the program could type into it (TIOCSTI), for the shell that reads next."""
    others = _users(planned.tree.processes) - {0, planned.terminal_owner}
    if planned.terminal_owner is not None and others:
        yield cause("terminal-of-another").finding(user=min(others), owner=planned.terminal_owner)


def _find_other_users_consoles(tree: ImageTree, host: HostState) -> Iterator[Finding]:
    """Find consoles that CRIU would open as root for a program of another user than the one they belong to now."""
    # A program with a console open reads what is typed there; with a controlling terminal it can type (TIOCSTI).
    terminals = {terminal.id: terminal for terminal in tree.terminals}
    found: dict[str, Finding] = {}
    for process in tree.processes:
        for file in {id(opened.file): opened.file for opened in process.descriptors}.values():
            terminal = terminals.get(file.info_id) if isinstance(file, Terminal) else None
            state = host.files.get(file.path) if isinstance(file, Terminal) else None
            if not isinstance(file, Terminal) or terminal is None or state is None:
                continue
            others = _users((process,)) - {0, state.owner}
            is_harmless = file.flags & os.O_ACCMODE == os.O_WRONLY and not terminal.session
            if others and terminal.kind in _CONSOLES and not is_harmless:
                finding = cause("console-of-another").finding(path=file.path, user=min(others), owner=state.owner)
                found.setdefault(file.path, finding)
    yield from found.values()


def _users(processes: Iterable[ImageProcess]) -> set[int]:
    """Return the real and effective user ids of these processes."""
    threads = (thread for process in processes for thread in process.threads)
    known = (thread.core.credentials for thread in threads)
    return {user for each in known if each is not None for user in (each.uid, each.euid)}
