"""Locks that a tree held, against those that others hold now. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from crckpt.causes import Finding, cause
from crckpt.host.proc.locks import Held
from crckpt.images.locks import FileLock


def kept_out(lock: FileLock, path: str, who: str, held: Iterable[Held]) -> Finding | None:
    """Who keeps `lock`, which `who` had on `path`, from being taken again: CRIU would wait for it without end."""
    named = f"the {lock.kind} {'lock ' * (lock.kind != 'flock')}on {path} ({who})"
    return next(
        (
            cause("lock-taken").told(
                lock=named, holder=f"{other.comm} (PID {other.pid})" if other.pid else "another program"
            )
            for other in held
            if _conflict(lock, other)
        ),
        None,
    )


def _conflict(lock: FileLock, other: Held) -> bool:
    """Source: flock(2), fcntl(2). POSIX and OFD locks are on bytes of a file, flock is on all of it and apart."""
    return (
        (lock.kind == "flock") == (other.kind == "flock")
        and (lock.exclusive or other.exclusive)
        and (other.end is None or lock.start <= other.end)
        and (lock.end is None or other.start <= lock.end)
    )
