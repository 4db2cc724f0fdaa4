"""Samples of the memory of live processes: their content and size, and that sampling loads no page."""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from crckpt.host import proc
from crckpt.host.observe.memory import sample
from crckpt.host.proc.maps import count_maps

PAGE = 4096
PAGES = 2000
MARK = b"a page of the sample's test"
HEAD = struct.Struct(f">{len(MARK)}sI")


@contextmanager
def sleepers(count: int = 1, flags: int = mmap.MAP_PRIVATE) -> Iterator[list[int]]:
    """Children with so many marked pages in every second half of 32 of a map; each page is another one."""
    pids = []
    for _ in range(count):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                memory = mmap.mmap(-1, 2 * PAGES * PAGE, flags)
                for number in range(PAGES):
                    # The page is written directly into the map, so that no page of the heap has the same content.
                    HEAD.pack_into(memory, (number // 16 * 32 + number % 16) * PAGE, MARK, number)
                os.write(writing, b"1")
                signal.pause()
            finally:
                os._exit(1)
        os.close(writing)
        assert os.read(reading, 1) == b"1"
        os.close(reading)
        pids.append(pid)
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def marked(pids: list[int], most: int) -> list[int]:
    """The numbers of the marked pages of a sample."""
    memory = sum(proc.memory(pid) for pid in pids)
    found = []
    for run in sample(pids, memory, most):
        for at in range(0, len(run), PAGE):
            page = run[at : at + PAGE]
            if page.startswith(MARK):
                found.append(HEAD.unpack_from(page)[1])
    return found


def test_all_memory_is_sampled_if_the_sample_is_large_enough() -> None:
    with sleepers() as pids:
        assert sorted(marked(pids, 1 << 30)) == list(range(PAGES))


def test_sample_contains_shared_memory() -> None:
    with sleepers(flags=mmap.MAP_SHARED) as pids:
        assert sorted(marked(pids, 1 << 30)) == list(range(PAGES))


def test_pages_of_a_sample_are_spread_over_the_memory() -> None:
    with sleepers() as pids:
        found = marked(pids, proc.memory(pids[0]) // 8)
        assert PAGES // 16 < len(found) < PAGES // 4
        assert min(found) < PAGES // 4
        assert max(found) > PAGES * 3 // 4


def test_similar_processes_are_sampled_at_the_same_offsets() -> None:
    with sleepers(3) as pids:
        found = marked(pids, sum(proc.memory(pid) for pid in pids) // 8)
        assert len(found) == 3 * len(set(found)) > 0


def test_sampling_memory_loads_no_page() -> None:
    with sleepers() as pids:
        before = proc.memory(pids[0])
        marked(pids, 1 << 30)
        assert proc.memory(pids[0]) == before


def test_ended_process_has_no_samples() -> None:
    with sleepers() as pids:
        pass
    assert count_maps(pids[0]) == 0
    assert list(sample(pids, PAGE, PAGE)) == []
