"""Can the kernel track writes, and load pages later? Each probe tries it on a page of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crckpt.errors import HostCannot
from crckpt.host.probes.outcome import Outcome, missing, ok
from crckpt.host.syscalls import memory_trials

_WRITTEN = "writes to a page are detected"
_UNPRIVILEGED = Path("/proc/sys/vm/unprivileged_userfaultfd")


def soft_dirty() -> Outcome:
    """Write a page and look at its bit."""
    if memory_trials.tracks_by_soft_dirty():
        return ok(_WRITTEN)
    return missing(
        "writes to a page are not detected",
        "CRIU's own pre-dump and incremental dumps do not work here",
        "use a kernel with CONFIG_MEM_SOFT_DIRTY",
    )


def write_protection() -> Outcome:
    """Protect a page asynchronously, write it, and ask PAGEMAP_SCAN."""
    return _try(
        memory_trials.tracks_by_write_protection,
        _WRITTEN,
        "crckpt cannot track writes by write protection",
        "use a kernel from 6.7 on",
    )


def pagemap_scan() -> Outcome:
    """Ask for the written pages of a map of ours."""
    return _try(
        memory_trials.can_scan,
        "it finds a page of ours",
        "CRIU reads page maps entry by entry: dumps of large memory freeze longer",
        "use a kernel from 6.7 on",
    )


def lazy_pages() -> Outcome:
    """Touch a missing page, which another process of ours fills, as `criu lazy-pages` does."""
    # If this is 0 the kernel has the call, but only for root.
    for_root = _UNPRIVILEGED.exists() and _UNPRIVILEGED.read_text().strip() == "0"
    return _try(
        memory_trials.can_bring_pages_later,
        "a page was brought when it was touched",
        "a restore cannot start before all of its memory is there",
        "sudo crckpt doctor" if for_root else "use a kernel with CONFIG_USERFAULTFD",
    )


def _try(trial: Callable[[], bool], works: str, lost: str, fix: str) -> Outcome:
    try:
        return ok(works) if trial() else missing("the trial's page was not found", lost, fix)
    except (HostCannot, OSError) as error:
        return missing(str(error), lost, fix)
