"""Lift crckpt's own limits that would end CRIU by a signal while a tree is frozen (`ulimit -f`, `ulimit -t`)."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

_ENDED_BY_SIGNAL: Final = (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)


def lift_limits() -> None:
    """Raise the limits as far as we may. A restored tree gets its own ones from its checkpoint."""
    for limit in _ENDED_BY_SIGNAL:
        soft, hard = resource.getrlimit(limit)
        if soft == resource.RLIM_INFINITY:
            continue
        for most in (resource.RLIM_INFINITY, hard):
            # Without CAP_SYS_RESOURCE only up to the hard limit.
            with suppress(ValueError, OSError):
                resource.setrlimit(limit, (most, most))
                break


def read_file_size_limit() -> int | None:
    """Return the largest file that we and CRIU may write, in bytes; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft
