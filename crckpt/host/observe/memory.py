"""Read samples of a live process's memory, without stopping it or loading pages.

Source: proc_pid_maps(5), proc_pid_pagemap(5), proc_pid_mem(5).
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from crckpt.host.opened import opened
from crckpt.host.proc.maps import Map, read_maps
from crckpt.model import PAGE_SIZE

# Most pages in a run. Single pages would compress worse than they do among their neighbours.
_CHUNK: Final = 16

# Runs of each process, at least; they are shorter if necessary.
_RUNS: Final = 16

# Most places of one map that are read: it may be terabytes of reserved, almost empty address space.
_MOST_CHUNKS: Final = 1 << 14

# Odd numbers with which `_scatter` mixes bits. Source: Knuth (2^32 / golden ratio); the second is any such number.
_MIXERS: Final = (0x9E3779B1, 0x85EBCA6B)
# Bits of an entry of pagemap. The second one means: a page of a file, or shared anonymous memory.
_PRESENT: Final = 1 << 63
_OF_FILE: Final = 1 << 61
_IN_MEMORY: Final = ("/memfd:", "/dev/zero", "/SYSV")


def sample(pids: Sequence[int], memory: int, most: int) -> Iterator[bytes]:
    """Read about `most` of the `memory` bytes of these processes, in runs of whole pages."""
    # The places are the same in each process, so that pages that processes have in common are so in the sample, too.
    every = max(1, -(-memory // most))
    chunk = max(1, min(_CHUNK, most // (len(pids) * _RUNS * PAGE_SIZE)))
    left = 2 * most  # a limit, because the tree may have grown since its memory was measured
    for pid in pids:
        with suppress(OSError):
            for run in _runs(pid, every, chunk):
                yield run
                left -= len(run)
                if left <= 0:
                    return


def _runs(pid: int, every: int, chunk: int) -> Iterator[bytes]:
    # Not process_vm_readv(2), which would pin pages, and so end their sharing after a fork.
    with (
        opened(os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)) as pagemap,
        opened(os.open(f"/proc/{pid}/mem", os.O_RDONLY)) as memory,
    ):
        # The maps that may hold memory that is in no file.
        maps = [
            each
            for each in read_maps(pid)
            if each.path.startswith(_IN_MEMORY) or not (each.is_shared or each.path.startswith(("[v", "/dev/")))
        ]
        for number, found in enumerate(maps):
            for first, count in _resident(pagemap, found, chunk, every, number):
                with suppress(OSError):  # gone by now, or of a device
                    yield os.pread(memory, count * PAGE_SIZE, first)


def _resident(pagemap: int, found: Map, chunk: int, every: int, ordinal: int) -> Iterator[tuple[int, int]]:
    """(address, pages) of resident runs, in one of every `every` chunks of a map: a different one of each group."""
    chunks = -(-(found.end - found.start) // (PAGE_SIZE * chunk))
    step = max(every, chunks // _MOST_CHUNKS)
    for group in range(0, chunks, step):
        number = group + _scatter(ordinal + group) % step
        if number >= chunks:
            break
        start = found.start + number * chunk * PAGE_SIZE
        wanted = min(chunk, (found.end - start) // PAGE_SIZE)
        entries = os.pread(pagemap, 8 * wanted, start // PAGE_SIZE * 8)
        place = 0
        for is_ours, run in itertools.groupby(
            bool(entry & _PRESENT) and (found.is_shared or not entry & _OF_FILE)
            for (entry,) in struct.iter_unpack("<Q", entries)
        ):
            count = len(list(run))
            if is_ours:
                yield start + place * PAGE_SIZE, count
            place += count


def _scatter(number: int) -> int:
    """Return a number that looks random, the same for the same number.

    With a regular step the sample would hit the same place in each of many equal objects, or never two equal places.
    """
    for mixer in _MIXERS:
        number = number * mixer & 0xFFFFFFFF
        number ^= number >> 15
    return number
