"""The number of descriptors that CRIU may open, and that a round needs: it moves memory into pipes.

Source: criu/page-pipe.c, and for what a pipe may hold fs/pipe.c, pipe_set_size.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.proc import effective_capabilities
from crckpt.model import PAGE_SIZE

_CAP_SYS_RESOURCE: Final = 24  # linux/capability.h
_SMALLEST: Final = 16
# Pages in a new pipe, and the most to which CRIU grows it (PIPE_MAX_SIZE, in the kernel's steps).
_LARGEST: Final = 1024
# Other descriptors that CRIU has open, with a margin.
_OTHERS: Final = 64


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
