"""Marks of trees whose memory is being filled: a dump would miss what is not there yet.

A mark is a file that the helper keeps locked as long as it fills, and removes once all memory is there. If the tree
had to be ended, it says why. If helper and guard were killed, it is there without a lock: if its tree lives, that waits
for its memory; otherwise the next helper removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from crckpt.errors import HostCannot
from crckpt.helper.kinds import FILLER, HelperRecord, find_records, record_path
from crckpt.host import proc
from crckpt.host.disk.own_files import make_runtime_directory
from crckpt.host.proc import Identity, procfs

_WAITS: Final = re.compile(r"^VmFlags:.* um\b", re.MULTILINE)


def open_mark(root: Identity) -> int:
    """Make the mark of a tree, locked; return its descriptor. Raises OSError."""
    path = record_path(FILLER, root)
    make_runtime_directory(path)
    # Remove the marks of helpers that have ended, except for those that say why, and those of living trees.
    for mark, descriptor in _open_marks():
        try:
            with suppress(OSError):
                # Whoever waits for it holds a lock, too.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(descriptor).st_size and not mark.root.keeps_pid:
                    mark.path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
                return descriptor
        # Another helper took it for a dead one before it was locked.
        os.close(descriptor)


def wait_until_released(root: Identity) -> None:
    """Wait while a helper fills the memory of this tree, or ends it."""
    with suppress(FileNotFoundError):
        descriptor = os.open(record_path(FILLER, root), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def remove_mark(root: Identity) -> None:
    """Remove the mark of a tree whose memory is complete."""
    record_path(FILLER, root).unlink(missing_ok=True)


def is_unfilled(root: Identity) -> bool:
    """Return whether this tree lives, and nobody fills its memory any more. Call `wait_until_released` before."""
    return record_path(FILLER, root).exists() and root.keeps_pid


def is_incomplete(pid: int) -> bool:
    """Return whether a userfaultfd supplies pages that this process lacks."""
    with suppress(OSError):
        return _WAITS.search(procfs.text(f"/proc/{pid}/smaps")) is not None
    return False


def wait_until_complete(root: int, say: Callable[[str], None]) -> None:
    """Wait while crckpt fills the memory of a tree; `say` so. Raises HostCannot if nobody fills it any more."""
    is_said = False
    for _, descriptor in _open_marks():
        try:
            # A child may have left the tree that the mark names, so it does not tell which processes it is of.
            if (process := proc.read_process(root)) and any(map(is_incomplete, proc.read_tree(process).pids)):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not is_said:
                        say(f"waiting until all memory of PID {root} is there: crckpt still reads it from a store ...")
                    is_said = True
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)
    if (identity := proc.identify(root)) is not None:
        wait_until_released(identity)
        if is_unfilled(identity):
            raise HostCannot(
                f"PID {root} waits for memory that nobody fills: the helper that did so was killed",
                hint=f"end it (kill -9 {root}) and restore its last checkpoint: crckpt restore JOB",
            )


def _open_marks() -> Iterator[tuple[HelperRecord, int]]:
    for mark in find_records(FILLER):
        with suppress(OSError):
            yield mark, os.open(mark.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
