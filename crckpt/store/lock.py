"""The store's lock: flock(2) on STORE/lock, freed by the kernel when its holder dies, and records that name holders."""

from __future__ import annotations

import errno
import fcntl
import os
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import IntegrityError, StoreLocked, StoreUnusable
from crckpt.host.disk.checked_files import open_checked
from crckpt.host.disk.files import is_named, open_lock, own_name, remove
from crckpt.model import utc_datetime
from crckpt.store.owner import Owner, read_owner, write_owner

TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 0.01
"""Short: who wants it alone must meet a moment in which nobody of many has it."""

_COMMAND = 100


class StoreLock:
    """Held shared by those who read or add, alone by those who remove. Holding may be nested in one process."""

    def __init__(self, root: Path) -> None:
        """`root` is the store's directory."""
        self._root = root
        self._depth = 0
        self._alone = False

    @contextmanager
    def held(self, *, alone: bool, timeout: float = TIMEOUT_S) -> Iterator[None]:
        """Hold the lock for the block. Raises StoreLocked if others have it for `timeout` seconds."""
        if self._depth == 0:
            with self._locked(alone, timeout):
                yield from self._nested()
            return
        if alone and not self._alone:
            raise RuntimeError("the store's lock is held shared; it cannot be had alone inside that")
        yield from self._nested()

    def _nested(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def _locked(self, alone: bool, timeout: float) -> Iterator[None]:
        descriptor = self._opened(alone)
        try:
            self._acquire(descriptor, alone, timeout)
            self._alone = alone
            with self._recorded():
                yield
        finally:
            self._alone = False
            os.close(descriptor)

    def _opened(self, alone: bool) -> int:
        path = self._root / "lock"
        try:
            return open_lock(path, "lock")
        except IntegrityError as error:
            raise StoreUnusable(error.message, hint=f"remove it: rm {path}") from error
        except OSError as error:
            # On a medium for reading only, a store is read all the same; there may be nobody who could lock it.
            if error.errno != errno.EROFS or alone:
                raise
            return open_checked(path, None) if is_named(path) else os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)

    def _acquire(self, descriptor: int, alone: bool, timeout: float) -> None:
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise self._refusal() from None
                time.sleep(_RETRY_S)
            else:
                return

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Leave our name for those who wait. A full disk must not keep anyone from removing: then there is no name."""
        path = self._root / "locks" / own_name()
        with suppress(OSError):
            write_owner(path, time.time(), "lock-record")
        try:
            yield
        finally:
            with suppress(OSError):
                remove(path, "lock-record")

    def _refusal(self) -> StoreLocked:
        owners = holders(self._root)
        if not owners:
            return StoreLocked(
                f"the store {self._root} is locked", hint=f"see which process has it open: lsof {self._root}/lock"
            )
        names = tuple(
            f"PID {owner.pid} ({textwrap.shorten(owner.command, _COMMAND)}) since {_clock(owner)}" for owner in owners
        )
        pids = " ".join(str(owner.pid) for owner in owners)
        return StoreLocked(
            f"the store {self._root} is locked by {', '.join(names)}",
            hint=f"wait until it is done, or end it: kill {pids}",
            causes=names,
        )


@contextmanager
def taking_turns(directory: Path, timeout: float = TIMEOUT_S) -> Iterator[None]:
    """Run the block while nobody else runs one for the same directory, by flock(2) on that.

    Who has waited for `timeout` seconds goes on all the same, as if the other had just ended; so does who may not lock
    a directory, as on NFS: what needs turns must bear that.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + timeout
        with suppress(OSError):
            while not _is_locked(descriptor) and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


def holders(root: Path) -> tuple[Owner, ...]:
    """The living processes that hold the lock of the store at `root`, as far as they could leave a record."""
    owners = (read_owner(path) for path in sorted((root / "locks").iterdir()))
    return tuple(owner for owner in owners if owner is not None and owner.is_alive)


def _is_locked(descriptor: int) -> bool:
    """Whether we have it alone now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clock(owner: Owner) -> str:
    return f"{utc_datetime(owner.since):%Y-%m-%d %H:%M:%S} UTC"
