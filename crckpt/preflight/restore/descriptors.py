"""Check what the descriptors of a checkpoint lead to before a restore: terminals, pipes, and files with locks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.proc.file_users import HeldLock
from crckpt.images.other_files import Pipe
from crckpt.images.processes import FileLock
from crckpt.images.regfile import RegularFile
from crckpt.images.tree import ImageTree, Thread
from crckpt.images.tty import Terminal, TerminalFiles, TerminalInfo
from crckpt.preflight.restore.files import find_needed_files, find_needed_path
from crckpt.preflight.restore.host import HostState, PlannedRestore

_STDERR = 2
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


def find_terminal_leader(tree: ImageTree) -> tuple[int, int, int] | None:
    """Find the session leader in the tree whose controlling terminal is outside: CRIU does not give it that terminal.

    Returns its PID, a descriptor of the terminal, and the process group that gets what is typed.
    """
    infos = {each.id: each for each in _find_outside(tree)}
    for process in tree.processes:
        for opened in process.descriptors if process.pid == process.sid else ():
            info = infos.get(opened.file.info_id) if isinstance(opened.file, Terminal) else None
            if info is not None and info.session == process.pid:
                return process.pid, opened.fd, info.group or process.pgid
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


class OutsidePipe(Struct, frozen=True):
    """A pipe into which the tree writes and from which a process outside read.

    `errors`: the tree has it only as standard error (fd 2). `polled`: an epoll watches it. A pipe that the tree reads
    is none: CRIU makes it again with the bytes in it, and nobody can write to it.
    """

    inode: int
    errors: bool
    polled: bool = False


def outside_pipes(planned: PlannedRestore) -> tuple[OutsidePipe, ...]:
    """Return the pipes that the tree wrote to and a process outside read."""
    tree = planned.tree
    # Go through all files: some wait in a socket, and no process has them open.
    pipes = [file for file in tree.files if isinstance(file, Pipe)]
    polled = {pipe.pipe_id for pipe in pipes if pipe.id in tree.polled}
    ends: dict[int, set[int]] = {}
    for pipe in pipes:
        ends.setdefault(pipe.pipe_id, set()).add(pipe.flags & os.O_ACCMODE)
    numbers: dict[int, set[int]] = {}
    for opened in (opened for process in tree.processes for opened in process.descriptors):
        if isinstance(opened.file, Pipe):
            numbers.setdefault(opened.file.pipe_id, set()).add(opened.fd)
    return tuple(
        OutsidePipe(inode, errors=numbers.get(inode) == {_STDERR}, polled=inode in polled)
        for inode, found in ends.items()
        # Where a reader is not known there was one: the program must not be ended by SIGPIPE.
        if found == {os.O_WRONLY} and inode not in planned.closed_pipes
    )


def two_way_pipes(tree: ImageTree) -> frozenset[int]:
    """Return the inodes of pipes with a descriptor both to read and to write."""
    pipes = (file for file in tree.files if isinstance(file, Pipe))
    return frozenset(pipe.pipe_id for pipe in pipes if pipe.flags & os.O_ACCMODE == os.O_RDWR)


def find_needed_locks(tree: ImageTree) -> Iterator[tuple[FileLock, str, str]]:
    """Return the locks that a restore takes again: each with its path, and who had it by which descriptor."""
    needed = {find_needed_path(file) for file in find_needed_files(tree)}
    holders = {process.pid: process for process in tree.processes}
    for lock in tree.locks:
        holder = holders[lock.pid]
        for opened in holder.descriptors:
            if opened.fd == lock.fd and isinstance(opened.file, RegularFile):
                path = find_needed_path(opened.file)
                if path in needed:
                    yield lock, path, f"fd {lock.fd} of {holder.comm}, PID {lock.pid}"


def judge_locks(tree: ImageTree, host: HostState) -> Iterator[Finding]:
    """Find locks that other programs hold: CRIU would wait for them without end."""
    # flock without LOCK_NB, and F_SETLKW (criu/file-lock.c:626 and 645).
    for lock, path, holder in find_needed_locks(tree):
        if (found := find_conflict(lock, path, holder, host.locks.get(path, ()))) is not None:
            yield found


def find_conflict(lock: FileLock, path: str, holder: str, others: Iterable[HeldLock]) -> Finding | None:
    """Find another program's lock because of which `lock`, which `holder` had on `path`, cannot be taken again."""
    for other in others:
        # POSIX and OFD locks are on bytes of a file. flock is on the whole file, and independent of them (fcntl(2)).
        if (
            (lock.kind == "flock") == (other.kind == "flock")
            and (lock.exclusive or other.exclusive)
            and (other.end is None or lock.start <= other.end)
            and (lock.end is None or other.start <= lock.end)
        ):
            title = f"the {lock.kind} {'lock ' * (lock.kind != 'flock')}on {path} ({holder})"
            by = f"{other.comm} (PID {other.pid})" if other.pid else "another program"
            return cause("lock-taken").finding(lock=title, holder=by)
    return None
