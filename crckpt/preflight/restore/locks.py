"""Check the file locks of a checkpoint before a restore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crckpt.causes import Finding, cause
from crckpt.host.proc.file_users import HeldLock
from crckpt.images.filelocks import FileLock
from crckpt.images.regfile import RegularFile
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.files import find_needed_files, find_needed_path
from crckpt.preflight.restore.host import HostState


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
    needed = find_needed_locks(tree)
    found = (find_conflict(lock, path, holder, host.locks.get(path, ())) for lock, path, holder in needed)
    yield from filter(None, found)


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
