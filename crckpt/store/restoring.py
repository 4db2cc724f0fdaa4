"""One restore of a job at a time: flock(2) on STORE/locks/restore-JOB, which the kernel frees when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import StoreLocked
from crckpt.host import proc
from crckpt.host.disk.files import open_lock, remove, resize, write
from crckpt.model import JobName
from crckpt.store.format.names import check_name
from crckpt.store.layout import Layout
from crckpt.store.lock import TIMEOUT_S

_RETRY_S: Final = 0.05
_COMMAND: Final = 100
_PID: Final = re.compile(r"[1-9]\d{0,9}")


@contextmanager
def restoring(layout: Layout, job: JobName, timeout: float = TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of the restores of `job` while the block runs, and the store's lock shared.

    A read-only store has no such lock. Raises StoreLocked if another restore has not ended after `timeout` seconds.
    """
    path = layout.locks / f"restore-{check_name(job, 'job')}"
    try:
        lock = _acquired(path, job, timeout)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        lock = -1
    try:
        yield
    finally:
        if lock >= 0:
            with suppress(OSError):
                remove(path, "restore-lock")
            os.close(lock)


def _acquired(path: Path, job: JobName, timeout: float) -> int:
    """A descriptor that holds the lock, and names us to those who wait."""
    deadline = time.monotonic() + timeout
    while True:
        descriptor = open_lock(path, "restore-lock")
        try:
            if _is_locked(descriptor, path, deadline):
                # A full disk must not keep anyone from restoring: then there is no name.
                with suppress(OSError):
                    resize(descriptor, 0, "restore-lock")
                    write(descriptor, str(os.getpid()).encode(), "restore-lock")
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise _refusal(path, job)


def _is_locked(descriptor: int, path: Path, deadline: float) -> bool:
    """Whether we have the lock, as soon as we do; not if the file is no longer there, or at the deadline."""
    while True:
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before us has removed it: then another may have a new one.
            return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
        if time.monotonic() >= deadline or not path.exists():
            return False
        time.sleep(_RETRY_S)


def _refusal(path: Path, job: JobName) -> StoreLocked:
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
    )
