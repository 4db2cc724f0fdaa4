"""The private directory of files that are useless after the next boot."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host.disk.own_files import is_own

_PRIVATE: Final = 0o700


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
