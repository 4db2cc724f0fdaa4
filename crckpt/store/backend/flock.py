"""The locks of a local store: flock(2), which the kernel frees when a holder dies, and records that name holders."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import IntegrityError, StoreLocked, StoreUnusable
from crckpt.host import proc
from crckpt.host.disk.checked_files import open_checked
from crckpt.host.disk.files import is_named, open_lock, own_name, remove, resize, write
from crckpt.host.disk.own_files import make_runtime_directory, runtime_directory
from crckpt.model import JobName, utc_datetime
from crckpt.store import layout
from crckpt.store.owner import Owner, read_owner, write_owner

# Short: a process that wants the lock alone has to hit a moment in which none of many holds it.
_RETRY_S: Final = 0.01

_RESTORE_RETRY_S: Final = 0.05
_COMMAND: Final = 100
# A read-only mount; the rights of another user; an immutable file.
_UNWRITABLE: Final = (errno.EROFS, errno.EACCES, errno.EPERM)
_PID: Final = re.compile(r"[1-9]\d{0,9}")


@contextmanager
def locked(root: Path, *, alone: bool, timeout: float) -> Iterator[None]:
    """Hold the lock of the store at `root`; see `Backend.locked`."""
    descriptor = _open_store_lock(root, alone)
    try:
        _acquire(descriptor, root, alone, timeout)
        with _recorded(root):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def turn_taken(directory: Path, timeout: float) -> Iterator[None]:
    """Take turns by flock(2) on the directory itself; see `Backend.turn_taken`."""
    # Where a directory cannot be locked, as on NFS, nobody waits.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + timeout
        with suppress(OSError):
            while not _try_alone(descriptor) and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def restores_locked(root: Path, job: JobName, timeout: float, *, alone: bool) -> Iterator[None]:
    """Hold the lock of the restores of `job`, a file that the last holder removes; see `Backend.restores_locked`."""
    path = root / layout.LOCKS / f"restore-{job}"
    try:
        lock = _acquire_restores(path, job, timeout, alone)
    except OSError as error:
        if error.errno not in (*_UNWRITABLE, errno.ENOENT):
            raise
        # One for this host, whatever path leads to the store. A restore through a writable path does not see it: then
        # the PIDs that are taken keep one of the two from succeeding.
        status = root.stat()
        path = runtime_directory() / "restores" / f"{status.st_dev:x}-{status.st_ino:x}-{job}"
        make_runtime_directory(path)
        lock = _acquire_restores(path, job, timeout, alone)
    try:
        yield
    finally:
        # Only without other holders: who came after the file was removed would not see them.
        if alone or _try_alone(lock):
            with suppress(OSError):
                remove(path, "restore-lock")
        os.close(lock)


def holders(root: Path) -> tuple[Owner, ...]:
    """The living processes that hold the lock of the store at `root`, as far as they could leave a record."""
    return tuple(owner for owner in _read_records(root) if owner.is_alive)


def _read_records(root: Path) -> Iterator[Owner]:
    directory = root / layout.LOCKS
    # A backup may have left it out.
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if (owner := read_owner(path)) is not None:
            yield owner


def _open_store_lock(root: Path, alone: bool) -> int:
    path = root / layout.LOCK
    try:
        return open_lock(path, "lock")
    except IntegrityError as error:
        raise StoreUnusable(error.message, hint=f"remove it: rm {shlex.quote(str(path))}") from error
    except OSError as error:
        # We cannot write here, but others may: a descriptor for reading holds the same lock (flock(2)). Where a backup
        # has left out the lock's file, nobody but readers can come.
        if error.errno not in _UNWRITABLE or alone:
            raise
        return open_checked(path, None) if is_named(path) else os.open(root, os.O_RDONLY | os.O_CLOEXEC)


def _acquire(descriptor: int, root: Path, alone: bool, timeout: float) -> None:
    operation = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _store_refusal(root) from None
            time.sleep(_RETRY_S)
        else:
            return


@contextmanager
def _recorded(root: Path) -> Iterator[None]:
    """Record this process for those who wait."""
    # Removing must also work on a full disk: then there is no record.
    path = root / layout.LOCKS / own_name()
    with suppress(OSError):
        write_owner(path, time.time(), "lock-record")
    try:
        yield
    finally:
        with suppress(OSError):
            remove(path, "lock-record")


def _store_refusal(root: Path) -> StoreLocked:
    owners = holders(root)
    if not owners:
        elsewhere = sorted({owner.host for owner in _read_records(root) if owner.is_elsewhere})
        perhaps = f", perhaps by a process on {' or '.join(elsewhere)}" if elsewhere else ""
        quoted = shlex.quote(str(root / layout.LOCK))
        hint = f"find the process{' there' if elsewhere else ''}: lsof {quoted} (package lsof)"
        return StoreLocked(f"the store {root} is locked{perhaps}", hint=hint)
    names = tuple(
        f"PID {owner.pid} ({textwrap.shorten(owner.command, _COMMAND)}) since "
        f"{utc_datetime(owner.since):%Y-%m-%d %H:%M:%S} UTC"
        for owner in owners
    )
    pids = " ".join(str(owner.pid) for owner in owners)
    return StoreLocked(
        f"the store {root} is locked by {', '.join(names)}",
        hint=f"wait until it has ended, or end it: kill {pids}",
        causes=names,
    )


def _try_alone(descriptor: int) -> bool:
    """Try to lock it alone; return whether that worked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _acquire_restores(path: Path, job: JobName, timeout: float, alone: bool) -> int:
    """Return a descriptor that holds the lock; the file names this process to those who wait."""
    deadline = time.monotonic() + timeout
    while True:
        descriptor = open_lock(path, "restore-lock")
        try:
            if _wait_for_restores(descriptor, path, deadline, alone):
                # Restoring must also work on a full disk: then the file names nobody.
                with suppress(OSError):
                    resize(descriptor, 0, "restore-lock")
                    write(descriptor, str(os.getpid()).encode(), "restore-lock")
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise _restore_refusal(path, job)


def _wait_for_restores(descriptor: int, path: Path, deadline: float, alone: bool) -> bool:
    """Wait for the lock; False if its file is no longer there, or at the deadline."""
    while True:
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            # The holder before has removed the file. Another process may already hold the lock of a new one.
            return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
        if time.monotonic() >= deadline or not path.exists():
            return False
        time.sleep(_RESTORE_RETRY_S)


def _restore_refusal(path: Path, job: JobName) -> StoreLocked:
    pid = ""
    with suppress(OSError):
        found = _PID.fullmatch(path.read_text(errors="replace"))
        pid = found[0] if found else ""
    if not pid:
        return StoreLocked(f"another restore of {job} is in progress", hint="wait until it has ended, then try again")
    command = textwrap.shorten(" ".join(proc.command_line(int(pid))), _COMMAND)
    return StoreLocked(
        f"another restore of {job} is in progress: PID {pid} ({command})",
        hint=f"wait until it has ended, or end it: kill {pid}",
        holder=int(pid),
    )
