"""The private prefix: its place, its lock, and how a new one replaces it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from crckpt.criu.install import PREFIX

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
    """Lock the prefix, so that a second run waits for the first; remove what a killed run left."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with prefix.with_name(f".{prefix.name}.lock").open("w") as lock:
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
