"""Choose the tracker of a tree: the best method that works with this kernel, this CRIU and the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import HostCannot, error_text
from crckpt.host import proc
from crckpt.host.syscalls import memory_trials, pagemap
from crckpt.model import PAGE_SIZE
from crckpt.tracking.preload import library
from crckpt.tracking.refusals import find_criu_refusal
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.tracker import Claims, Method, Tracker
from crckpt.tracking.uffd_wp import UffdWp

_UNKNOWN: Final = (0, 0)
# The first release of CRIU that copies all huge pages that were set aside, whatever their bits say.
_COPIES_HUGE: Final = (3, 18)


class Trials(Struct, frozen=True):
    """The trials that decide the order of the methods: trials of the kernel, and why a CRIU cannot use a method."""

    tracks_by_soft_dirty: Callable[[], bool] = memory_trials.tracks_by_soft_dirty
    soft_dirty_misses_joined: Callable[[], bool] = memory_trials.soft_dirty_misses_joined
    tracks_by_write_protection: Callable[[], bool] = memory_trials.tracks_by_write_protection
    find_criu_refusal: Callable[[Path, str], str] = find_criu_refusal


_OF_THIS_HOST: Final = Trials()


def choose_tracker(
    root: proc.Process, criu: Path, claims: Path | None = None, trials: Trials = _OF_THIS_HOST
) -> tuple[Tracker | None, str]:
    """Try the methods of this host on a tree. Return the tracker, attached, or none; and why it, or why none.

    `claims` is the file, if not the host's.
    """
    refusal = ""
    for method, why, is_last in _methods(criu, trials):
        # A method before the last one is taken only for trees that it tracks completely.
        tracker, refusal = _attach_to(root, method, claims, all_of_it=not is_last) if method else (None, why)
        if tracker is not None:
            return tracker, why
    return None, refusal


def find_method(criu: Path) -> tuple[str, str]:
    """Return the name of the method that works with this CRIU, and why it; or an empty name, and why none works."""
    refusal = ""
    for method, why, _ in _methods(criu, _OF_THIS_HOST):
        if method is not None:
            return method.name, why
        refusal = why
    return "", refusal


def count_written(name: str, pid: int) -> int:
    """Count the tracked pages that a process has written, by the method of that name. Raises OSError."""
    method = SoftDirty() if name == SoftDirty.name else UffdWp()
    rows = method.find_written(pid)
    return int((rows[:, 1] - rows[:, 0]).sum()) // PAGE_SIZE


def count_untracked(name: str, pid: int) -> int:
    """Count the private pages of a process that always count as written. Raises OSError."""
    return 0 if name == SoftDirty.name else pagemap.count_changed_file_pages(pid)


def _methods(criu: Path, trials: Trials) -> Iterator[tuple[Method | None, str, bool]]:
    """Yield each method, why it is taken, and whether it is the last; the better first. Or None, and why it fails."""
    if not trials.tracks_by_soft_dirty():
        yield *_write_protection(criu, trials, "this kernel has no soft-dirty bits"), True
        return
    # Seen on many kernels from 6.0 on: what is written where mprotect(2) has joined maps gets no bit.
    if trials.soft_dirty_misses_joined():
        why = "this kernel's soft-dirty bits miss writes to maps that were joined"
        yield *_write_protection(criu, trials, why), False
    refusal = trials.find_criu_refusal(criu, SoftDirty.name)
    # An unknown release counts as an old one.
    method = None if refusal else SoftDirty(misses_huge=(library.read_release(criu) or _UNKNOWN) < _COPIES_HUGE)
    yield method, refusal or "the kernel has soft-dirty bits", True


def _write_protection(criu: Path, trials: Trials, why: str) -> tuple[Method | None, str]:
    """Return the method, and `why` it is taken; or None, and why it does not work."""
    try:
        works = trials.tracks_by_write_protection()
    except HostCannot as error:
        return None, f"{why}, and {error.message}"
    if not works:
        return None, f"{why}, and its write protection does not report written pages"
    refusal = trials.find_criu_refusal(criu, UffdWp.name)
    return (None, refusal) if refusal else (UffdWp(), why)


def _attach_to(
    root: proc.Process, method: Method, claims: Path | None, *, all_of_it: bool
) -> tuple[Tracker | None, str]:
    try:
        tracker = Tracker(root, method, Claims(claims))
    except OSError as error:
        return None, f"crckpt cannot open its list of tracked processes: {error_text(error)}"
    try:
        tracker.look()
        refusal = tracker.find_refusal(all_of_it=all_of_it)
    except HostCannot as error:
        refusal = error.message
    if refusal:
        tracker.close()
        return None, refusal
    return tracker, ""
