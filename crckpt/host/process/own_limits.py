"""The limits of crckpt and of the CRIU that it starts: address space, file size, CPU time, descriptors, cores."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc import effective_capabilities
from crckpt.model import PAGE_SIZE

_ENDED_BY_SIGNAL: Final = (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)

_LARGE: Final = "numpy"
# Bytes of address space that numpy takes (2.3 on x86-64), with a margin.
_NEEDED: Final = 80 << 20
# An ImportError has no errno, so look for the texts of the C library's loader.
_SAID: Final = ("failed to map segment", "Cannot allocate memory", "cannot allocate", "out of memory")
_CAP_SYS_RESOURCE: Final = 24  # linux/capability.h
_SMALLEST: Final = 16
# Pages in a new pipe, and the most to which CRIU grows it (PIPE_MAX_SIZE, in the kernel's steps).
_LARGEST: Final = 1024
# Other descriptors that CRIU has open, with a margin.
_OTHERS: Final = 64


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


class _RefuseLarge:
    """A finder (`sys.meta_path`) that raises MemoryError for a large library that does not fit in memory."""

    # importlib.abc, which has the base class, takes 8 ms to import.
    @classmethod
    def find_spec(cls, fullname: str, _path: object, _target: object = None) -> None:
        """Find nothing: the next finder finds the module."""
        if fullname == _LARGE:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            if resource.getrlimit(resource.RLIMIT_AS)[0] - used < _NEEDED:
                raise MemoryError


def refuse_large_imports() -> None:
    """Let an import that does not fit raise MemoryError. Do nothing if address space is not limited."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        sys.meta_path.insert(0, _RefuseLarge)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error, or one of its causes, is a lack of memory."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MemoryError) or (isinstance(found, OSError) and found.errno == errno.ENOMEM):
            return True
        if isinstance(found, ImportError) and any(words in str(found) for words in _SAID):
            return True
        found = found.__cause__ or found.__context__
    return False


class DescriptorLimits(Struct, frozen=True):
    """The number of descriptors that CRIU may open: by default, and if we raise the limit; the pages that a pipe holds.

    With CAP_SYS_RESOURCE CRIU raises its limit itself.
    """

    soft: int
    hard: int
    pages_in_pipe: int

    def count_needed(self, size: int, processes: int) -> int:
        """Descriptors for a round of `size` bytes of memory in so many processes: two for each pipe."""
        pipes = -(-size // (self.pages_in_pipe * PAGE_SIZE)) + processes
        return 2 * pipes + _OTHERS


def read_descriptor_limits() -> DescriptorLimits:
    """Read the limits of a program that we start."""
    if _CAP_SYS_RESOURCE in effective_capabilities():
        # CRIU sets both limits to this (criu/util.c, rlimit_unlimit_nofile). pipe-max-size does not bind it either.
        most = int(Path("/proc/sys/fs/nr_open").read_text())
        return DescriptorLimits(most, most, _LARGEST)
    largest = int(Path("/proc/sys/fs/pipe-max-size").read_text()) // PAGE_SIZE
    # CRIU doubles a pipe until the kernel refuses (criu/page-pipe.c:48).
    pages = _SMALLEST
    while pages < _LARGEST and 2 * pages <= largest:
        pages *= 2
    return DescriptorLimits(*resource.getrlimit(resource.RLIMIT_NOFILE), pages)


def prlimit_words(most: int, limits: DescriptorLimits) -> tuple[str, ...]:
    """The command prefix (prlimit) for a program that opens `most` descriptors."""
    return ("prlimit", f"--nofile={min(most, limits.hard)}:{limits.hard}") if most > limits.soft else ()


@contextmanager
def cores_left_to(pids: Iterable[int]) -> Iterator[None]:
    """Keep this thread, and those that it starts, off the cores that threads of these processes run on now.

    Nothing changes if the system does not allow it.
    """
    # Not if that leaves less than half of our cores: our work would take much longer, and slow the
    # processes down for as long.
    ours = os.sched_getaffinity(0)
    try:
        # A nice value has no effect between sessions (sched(7), autogroup).
        with suppress(OSError):
            left = ours - proc.cores_in_use(pids)
            if 2 * len(left) >= len(ours):
                os.sched_setaffinity(0, left)
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, ours)
