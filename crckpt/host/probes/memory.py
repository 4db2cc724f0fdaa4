"""Check how much memory is free, and try on pages of ours whether the kernel tracks writes and loads pages later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from crckpt.errors import HostCannot, error_text
from crckpt.host.probes.outcome import GIBIBYTE, Outcome, free_of, limited, missing, ok
from crckpt.host.process import cgroups
from crckpt.host.syscalls import memory_trials

_UNPRIVILEGED = Path("/proc/sys/vm/unprivileged_userfaultfd")


def memory() -> Outcome:
    """Check how much memory is available to a restore, which must hold the whole tree in it."""
    found, swap = psutil.virtual_memory(), psutil.swap_memory()
    # psutil knows no limits of control groups.
    left = min((found.available, *cgroups.memory_left()))
    limit = " (the limit of crckpt's control group)" if left < found.available else ""
    said = f"{free_of(left, found.total)}{limit}, swap: {free_of(swap.free, swap.total) if swap.total else 'none'}"
    if left < GIBIBYTE:
        return limited(said, "a large tree cannot be restored", "end other programs, or raise the limit")
    return ok(said)


def soft_dirty() -> Outcome:
    """Write a page and look at its bit."""
    if memory_trials.tracks_by_soft_dirty():
        return ok("this kernel reports written pages by soft-dirty bits")
    return missing(
        "this kernel has no soft-dirty bits",
        "crckpt tracks written pages by write_protection instead; CRIU alone cannot make incremental dumps",
        "use a kernel with CONFIG_MEM_SOFT_DIRTY",
    )


def write_protection() -> Outcome:
    """Protect a page asynchronously, write it, and ask PAGEMAP_SCAN."""
    return _try(
        memory_trials.tracks_by_write_protection,
        "this kernel reports written pages by write protection",
        "incremental dumps need soft_dirty",
        "use Linux 6.7 or later",
    )


def pagemap_scan() -> Outcome:
    """Ask for the written pages of a map of ours."""
    return _try(
        memory_trials.can_scan,
        "dumps find the pages of large programs quickly (PAGEMAP_SCAN)",
        "dumps freeze programs with much memory for longer",
        "use Linux 6.7 or later",
    )


def lazy_pages() -> Outcome:
    """Touch a missing page, which another process of ours fills, as `criu lazy-pages` does."""
    # If this is 0 the kernel has the call, but only for root.
    for_root = _UNPRIVILEGED.exists() and _UNPRIVILEGED.read_text().strip() == "0"
    return _try(
        memory_trials.can_bring_pages_later,
        "memory can be loaded when it is used (userfaultfd)",
        "none on crckpt; criu lazy-pages does not work",
        "sudo crckpt doctor" if for_root else "use a kernel with CONFIG_USERFAULTFD",
    )


def _try(trial: Callable[[], bool], works: str, lost: str, fix: str) -> Outcome:
    try:
        return ok(works) if trial() else missing("the trial's page was not found", lost, fix)
    except (HostCannot, OSError) as error:
        return missing(error_text(error), lost, fix)
