"""The private prefix: its place, its lock, and how a new one replaces it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from crckpt.criu.install import PREFIX
from crckpt.errors import UsageError
from crckpt.host.disk.path_trust import find_intruder_above

_WRAPPER: Final = """#!/bin/sh
# {name}, with the libraries that it was made for
here=${{0%/*}}
if [ -L "$0" ] || [ "${{0#/}}" = "$0" ]; then here=$(dirname "$(readlink -f "$0")"); fi
exec {loader} {options} {program} "$@"
"""


def default_prefix() -> Path:
    """Return the prefix of this user."""
    if os.geteuid() == 0:
        return PREFIX
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "crckpt-criu"


@contextlib.contextmanager
def locked(prefix: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the prefix, so that a second run waits for the first; remove what a killed run left.

    Raises UsageError if root locks one that others can change.
    """
    _require_own(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    _require_own(prefix)  # in /tmp, another user may have made it first
    path = prefix.with_name(f".{prefix.name}.lock")
    # Nobody else can open it: they could hold the lock for ever.
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_mode & 0o077:
            path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another install-criu to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in prefix.parent.glob(f".{prefix.name}.tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def replacing(prefix: Path) -> Iterator[Path]:
    """Make a directory next to the prefix that replaces it on success, and is removed on failure."""
    with tempfile.TemporaryDirectory(prefix=f".{prefix.name}.tmp-", dir=prefix.parent) as work:
        staging = Path(work, "new")
        staging.mkdir()
        yield staging
        if prefix.exists():
            prefix.rename(Path(work, "old"))
        staging.rename(prefix)


def wrap(staging: Path, name: str, loader: str, options: str, program: str) -> None:
    """Write the script that starts `program` through `loader`; it works wherever the prefix is moved."""
    script = staging / name
    script.write_text(_WRAPPER.format(name=name, loader=loader, options=options, program=program))
    script.chmod(0o755)


def _require_own(prefix: Path) -> None:
    """Check that root installs nothing where another user can replace it. Raises UsageError, OSError."""
    # Who can write to /usr/local can replace commands of root without crckpt.
    if os.geteuid() != 0 or prefix == PREFIX:
        return
    above = prefix.parent
    intruder = find_intruder_above(above, frozenset({0})) or find_intruder_above(prefix / "criu", frozenset({0}))
    # The sticky bit protects only what is there.
    if not intruder and above.exists() and above.stat().st_mode & stat.S_ISVTX:
        intruder = f"every user can make files in {above}"
    if intruder:
        raise UsageError(
            f"root does not install CRIU where others can replace it: {intruder}",
            hint="name a directory that only root can change, as all directories above it: --prefix DIR",
        )
