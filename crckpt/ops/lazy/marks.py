"""Marks of trees whose memory is being filled: a dump would miss what is not there yet.

A mark is a file that the helper keeps locked as long as it fills. If the tree had to be ended, it says why.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host import proc
from crckpt.host.disk.files import runtime_directory
from crckpt.host.disk.runtime_directory import make_runtime_directory
from crckpt.host.proc import procfs

_WAITS: Final = re.compile(r"^VmFlags:.* um\b", re.MULTILINE)


def open_mark(root: int, start: int) -> int:
    """Make the mark of a tree, locked; return its descriptor. Raises OSError."""
    path = _directory() / f"{root}-{start}"
    make_runtime_directory(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def wait_until_released(root: int, start: int) -> None:
    """Wait while a helper fills the memory of this tree, or ends it."""
    with suppress(FileNotFoundError):
        descriptor = os.open(_directory() / f"{root}-{start}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def remove_mark(root: int, start: int) -> None:
    """Remove the mark of a tree whose memory is complete."""
    (_directory() / f"{root}-{start}").unlink(missing_ok=True)


def is_incomplete(pid: int) -> bool:
    """Return whether a userfaultfd supplies pages that this process lacks."""
    with suppress(OSError):
        return _WAITS.search(procfs.text(f"/proc/{pid}/smaps")) is not None
    return False


def wait_until_complete(root: int) -> None:
    """Wait while crckpt fills the memory of the tree below `root`."""
    for descriptor in _open_marks():
        try:
            # A child may have left the tree that the mark names, so it does not tell which processes it is of.
            if (process := proc.read_process(root)) and any(map(is_incomplete, proc.read_tree(process).pids)):
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _open_marks() -> Iterator[int]:
    with suppress(FileNotFoundError):
        for path in sorted(_directory().iterdir()):
            with suppress(OSError):
                yield os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _directory() -> Path:
    return runtime_directory() / "filling"
