"""Locks of other programs that conflict with those of a tree."""

from __future__ import annotations

import pytest

from crckpt.host.proc.file_users import HeldLock
from crckpt.images.processes import FileLock, LockKind
from crckpt.preflight.restore.descriptors import find_conflict

MINE = FileLock("POSIX", exclusive=True, pid=7, fd=3, start=100, end=149)
THEIRS = HeldLock("POSIX", exclusive=True, start=0, end=None, pid=9, comm="other")


def conflict_text(mine: FileLock, theirs: HeldLock) -> str:
    return str(find_conflict(mine, "/srv/file", "fd 3 of prog, PID 7", (theirs,)) or "")


def test_conflict_names_lock_and_holder() -> None:
    assert conflict_text(MINE, THEIRS) == (
        "the POSIX lock on /srv/file (fd 3 of prog, PID 7) is held by other (PID 9) now: "
        "end that program, or wait until it releases the lock; list all locks: lslocks"
    )
    assert "held by another program now" in conflict_text(
        MINE, HeldLock("OFD", exclusive=True, start=0, end=None, pid=0, comm="?")
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "conflict"),
    [
        *(("POSIX", "POSIX", True), ("POSIX", "OFD", True), ("OFD", "POSIX", True), ("flock", "flock", True)),
        *(("flock", "POSIX", False), ("OFD", "flock", False)),
    ],
)
def test_lock_kinds_conflict_as_in_the_kernel(mine: LockKind, theirs: LockKind, conflict: bool) -> None:
    held = HeldLock(theirs, exclusive=True, start=0, end=None, pid=9, comm="other")
    assert bool(conflict_text(FileLock(mine, True, 7, 3, 0, None), held)) is conflict


@pytest.mark.parametrize(
    ("start", "end", "conflict"), [(0, 99, False), (0, 100, True), (149, None, True), (150, None, False), (0, 0, False)]
)
def test_overlapping_ranges_conflict(start: int, end: int | None, conflict: bool) -> None:
    assert (
        bool(conflict_text(MINE, HeldLock("OFD", exclusive=True, start=start, end=end, pid=9, comm="other")))
        is conflict
    )


def test_shared_locks_do_not_conflict() -> None:
    shared = HeldLock("POSIX", exclusive=False, start=0, end=None, pid=9, comm="other")
    assert conflict_text(MINE, shared)
    assert not conflict_text(FileLock("POSIX", False, 7, 3, 0, None), shared)
    assert conflict_text(FileLock("POSIX", False, 7, 3, 0, None), THEIRS)
