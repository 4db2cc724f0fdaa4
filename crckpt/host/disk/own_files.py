"""crckpt's own files, which it reads only if no other user can write them, and their directories. Quick to import."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_MOST: Final = 16 << 20
_BY_OTHERS: Final = 0o022

_PRIVATE: Final = 0o700


def is_own(status: os.stat_result, kind: int = stat.S_IFREG) -> bool:
    """Return whether a file has this kind, belongs to root or our user, and nobody else can write to it."""
    owned = status.st_uid in (0, os.geteuid())
    return owned and stat.S_IFMT(status.st_mode) == kind and not status.st_mode & _BY_OTHERS


def open_own(path: Path) -> int:
    """Open a file of ours for reading. Raises OSError if there is none, or others can have written it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if not is_own(status) or status.st_size > _MOST:
        os.close(descriptor)
        raise PermissionError(f"other users can change {path}")
    return descriptor


def write_private(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read, whatever the umask. Raises OSError."""
    # Make a new file: the old one may have another mode, or be open elsewhere.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123
        file.write(content)


def make_own_directories(path: Path) -> None:
    """Make `path` and missing directories above it, all private, whatever the umask."""
    for directory in reversed((path, *path.parents)):
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)


def read_own(path: Path) -> bytes:
    """Read a file of ours. Raises OSError if there is none, or others can have written it."""
    with open(open_own(path), "rb") as file:
        return file.read(_MOST)


def runtime_directory() -> Path:
    """The directory for this user's files that are useless after the next boot. See `make_runtime_directory`."""
    if os.geteuid() == 0:
        return Path("/run/crckpt")
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"crckpt-{os.geteuid()}"  # noqa: S108


def make_runtime_directory(path: Path) -> None:
    """Make the private directory of `path`, below `runtime_directory`, whatever the umask.

    Raises OSError if another user has made it or can write to it.
    """
    top = runtime_directory()
    missing = [path.parent, *path.parent.parents]
    for directory in reversed(missing[: missing.index(top) + 1] if top in missing else missing[:1]):
        with suppress(FileExistsError):
            directory.mkdir(mode=_PRIVATE, parents=directory == top)
            directory.chmod(_PRIVATE)
        if not is_own(directory.lstat(), stat.S_IFDIR):
            raise PermissionError(errno.EPERM, "it belongs to another user, or others can write to it", str(directory))
