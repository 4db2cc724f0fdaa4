"""The locks of a local store: flock(2), which the kernel frees when a holder dies, and records that name holders."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import IntegrityError, StoreLocked, StoreUnusable
from crckpt.host.disk.checked_files import open_checked
from crckpt.host.disk.files import is_named, open_lock, own_name, remove, resize, status_of, write
from crckpt.host.disk.own_files import make_runtime_directory, runtime_directory
from crckpt.model import JobName, utc_datetime
from crckpt.store import layout
from crckpt.store.owner import Owner, identify_owner, read_owner, write_owner

# Short: a process that wants the lock alone has to hit a moment in which none of many holds it.
_RETRY_S: Final = 0.01

_RESTORE_RETRY_S: Final = 0.05
_COMMAND: Final = 100
# A read-only mount; the rights of another user; an immutable file.
_UNWRITABLE: Final = (errno.EROFS, errno.EACCES, errno.EPERM)
# The names of the locks of restores begin with it.
_RESTORE: Final = "restore-"


@contextmanager
def locked(root: Path, *, alone: bool, timeout: float) -> Iterator[None]:
    """Hold the lock of the store at `root`; see `Backend.locked`."""
    descriptor = _open_store_lock(root, alone)
    try:
        deadline = time.monotonic() + timeout
        while not _try_lock(descriptor, alone):
            if time.monotonic() >= deadline:
                raise _store_refusal(root)
            time.sleep(_RETRY_S)
        # For those who wait. Removing must also work on a full disk: then there is no record.
        record = root / layout.LOCKS / own_name()
        with suppress(OSError):
            write_owner(record, time.time(), "lock-record")
        try:
            yield
        finally:
            with suppress(OSError):
                remove(record, "lock-record")
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
            while not _try_lock(descriptor, True) and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def restores_locked(root: Path, job: JobName, timeout: float, *, alone: bool) -> Iterator[None]:
    """Hold the lock of the restores of `job`, a file that the last holder removes; see `Backend.restores_locked`."""
    path = root / layout.LOCKS / f"{_RESTORE}{job}"
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
        if alone or _try_lock(lock, True):
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
        if not path.name.startswith(_RESTORE) and (owner := read_owner(path)) is not None:
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
        return open_checked(path) if is_named(path) else os.open(root, os.O_RDONLY | os.O_CLOEXEC)


def _try_lock(descriptor: int, alone: bool) -> bool:
    """Try to lock it; return whether that worked."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def _acquire_restores(path: Path, job: JobName, timeout: float, alone: bool) -> int:
    """Return a descriptor that holds the lock; the file names this process to those who wait."""
    deadline = time.monotonic() + timeout
    while True:
        descriptor = open_lock(path, "restore-lock")
        try:
            while not (is_held := _try_lock(descriptor, alone)) and path.exists() and time.monotonic() < deadline:
                time.sleep(_RESTORE_RETRY_S)
            # The holder before has removed the file. Another process may already hold the lock of a new one.
            there = status_of(str(path), follow=False)
            if is_held and there is not None and os.path.samestat(os.fstat(descriptor), there):
                # Restoring must also work on a full disk: then the file names nobody.
                with suppress(OSError):
                    resize(descriptor, 0, "restore-lock")
                    write(descriptor, identify_owner(time.time()).encode(), "restore-lock")
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise _restore_refusal(path, job)


def _restore_refusal(path: Path, job: JobName) -> StoreLocked:
    owner = read_owner(path)
    if owner is None or not owner.is_alive:
        return StoreLocked(f"another restore of {job} is in progress", hint="wait until it has ended, then try again")
    return StoreLocked(
        f"another restore of {job} is in progress: PID {owner.pid} ({textwrap.shorten(owner.command, _COMMAND)})",
        hint=f"wait until it has ended, or end it: kill {owner.pid}",
        holder=owner.pid,
    )
