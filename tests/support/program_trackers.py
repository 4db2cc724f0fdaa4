"""Trackers of programs that run statements of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from target_processes import NO_WRITE_PROTECTION, reset

from crckpt.host import proc
from crckpt.host.syscalls import memory_trials
from crckpt.tracking.dump_basis import DumpBasis, RoundBase
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.tracker import Claims, Method, Tracker
from crckpt.tracking.uffd_wp import UffdWp

needs_write_protection = pytest.mark.skipif(bool(NO_WRITE_PROTECTION), reason=NO_WRITE_PROTECTION)

PAGE = 4096
NO_SOFT_DIRTY = (
    "" if memory_trials.tracks_by_soft_dirty() else "this kernel has no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)"
)
needs_soft_dirty = pytest.mark.skipif(bool(NO_SOFT_DIRTY), reason=NO_SOFT_DIRTY)
METHODS = (
    pytest.param(UffdWp, id="uffd-wp", marks=needs_write_protection),
    pytest.param(SoftDirty, id="soft-dirty", marks=needs_soft_dirty),
)


@contextmanager
def tracking(pid: int, method: Method, claims: Path) -> Iterator[Tracker]:
    root = proc.read_process(pid)
    assert root is not None
    tracker = Tracker(root, method, Claims(claims))
    try:
        yield tracker
    finally:
        tracker.close()


def at(name: str) -> RoundBase:
    """A round in a directory of this name."""
    return RoundBase(Path(name))


def dump_round(tracker: Tracker, *pids: int, name: str = "first") -> DumpBasis:
    """A round, with what a dump does to the bits."""
    began = tracker.begin()
    for pid in pids if began.tracks else ():
        if tracker.name == "uffd-wp":
            reset(pid)
        else:
            Path(f"/proc/{pid}/clear_refs").write_text("4")
    tracker.check_freeze()
    tracker.commit(at(name))
    return began
