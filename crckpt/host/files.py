"""Files and directories that survive a crash: write, fsync, rename, fsync the directory."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600


def make_private_directory(path: Path) -> None:
    """Create `path` with mode 0700, whatever the umask; durable once it returns."""
    path.mkdir(mode=PRIVATE_DIRECTORY)
    path.chmod(PRIVATE_DIRECTORY)
    sync_directory(path.parent)


def ensure_private_directory(path: Path) -> None:
    """As `make_private_directory`, but it may exist already, or be made by somebody else meanwhile."""
    with suppress(FileExistsError):
        make_private_directory(path)


def sync_directory(path: Path) -> None:
    """Make the names in `path` durable (fsync of the directory)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_private(path: Path) -> int:
    """Create `path` for writing with mode 0600, whatever the umask, and return its descriptor. Fails if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    os.fchmod(descriptor, PRIVATE_FILE)
    return descriptor


def write_new(path: Path, content: bytes) -> None:
    """Create `path` with mode 0600 and make its content durable; its name is so once the directory is synced."""
    with os.fdopen(open_private(path), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def move_durably(source: Path, target: Path) -> None:
    """Rename a file or directory, whose content is durable already, and make its new name durable."""
    source.rename(target)
    sync_directory(target.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Create or replace `path` so that after any crash it holds either the old or the new content, whole."""
    # A PID comes again after a crash: alone it would find its own leftover in the way.
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with removed_on_failure(beside):
        write_new(beside, content)
        beside.rename(path)
    sync_directory(path.parent)


@contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    """Remove `path`, a half-written temporary, if the block fails."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def put_back_on_failure(path: Path, size: int, kept: Path) -> Iterator[None]:
    """Cut `path` back to `size` bytes, with what came after kept in a new file; undone if the block fails.

    The new file is `kept`, or the first of `kept.2`, `kept.3` ... that is free: what was kept before stays.
    """
    tail = _tail(path, size)
    kept = _kept(kept, tail)
    with removed_on_failure(kept):
        sync_directory(kept.parent)
        os.truncate(path, size)
    try:
        yield
    except BaseException:
        with path.open("ab") as file:
            file.write(tail)
        kept.unlink()
        raise


def _kept(wanted: Path, content: bytes) -> Path:
    names = itertools.chain((wanted,), (wanted.with_name(f"{wanted.name}.{number}") for number in itertools.count(2)))
    free = next(name for name in names if not os.path.lexists(name))
    descriptor = open_private(free)
    with removed_on_failure(free), os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return free


def _tail(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(size)
        return file.read()


def status_of(path: str) -> os.stat_result | None:
    """stat(2) of a file; None if it is missing or cannot be reached."""
    try:
        return Path(path).stat()
    except OSError:
        return None
