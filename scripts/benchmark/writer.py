"""A process of a given size that writes pages at a given rate, and works as fast as it can on request.

Usage: writer.py [CHILDREN] BOARD MEBIBYTES. The board is as in `targets.py`. In addition, 5 is the number of pages to
write per second, 6 is 1 to work, and 7 is the number of pages written; a tick is then a unit of work. With CHILDREN
the memory is in that many child processes, of which each writes its share.
"""

import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

STILL_NS = 3_000_000
GAPS = 200
MEMORY_AT_ONCE = 64 << 20


def main(board: npt.NDArray[np.uint64], size: int, share: int) -> None:
    """Fill the memory, then write for ever; `share`: how many processes share the pages that the board asks for."""
    memory = allocate(size)
    # Pages in random order, each once before any again.
    order = np.random.default_rng(os.getpid()).permutation(len(memory) // mmap.PAGESIZE)
    root = os.getsid(0)
    is_root = os.getpid() == root
    if is_root:
        board[0] = 1
    work = np.random.default_rng(1).random(20_000)
    done = asked = place = 0
    since = last = time.monotonic_ns()
    while is_root or os.getppid() == root:
        if not is_root or not board[6]:
            time.sleep(0.001 if is_root else 0.01)
        else:
            np.sort(work)
        now = time.monotonic_ns()
        if is_root:
            note(board, last, now)
        rate = int(board[5]) // share
        if rate != asked:
            asked, since, done = rate, now, 0
        due = rate * (now - since) // 10**9 - done
        if due > 0:
            due = min(due, len(order))
            place = place if place + due <= len(order) else 0
            pages = order[place : place + due]
            place += due
            memory[pages * mmap.PAGESIZE] += np.uint8(1)
            memory[pages * mmap.PAGESIZE + 8] = np.uint8(now & 255)
            done += due
            if is_root:
                board[7] += due
        last = now


def note(board: npt.NDArray[np.uint64], last: int, now: int) -> None:
    """Count ticks and record gaps."""
    if now - last > STILL_NS:
        spot = 8 + 2 * (int(board[4]) % GAPS)
        board[spot : spot + 2] = last, now
        board[4] += 1
    board[3] += 1


def allocate(size: int) -> npt.NDArray[np.uint8]:
    """Return memory in small pages: a write would touch a whole huge page."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    memory: npt.NDArray[Any] = np.frombuffer(area, np.uint8)
    chance = np.random.default_rng(1)
    for start in range(0, size, MEMORY_AT_ONCE):
        part = memory[start : start + MEMORY_AT_ONCE]
        part[:] = np.frombuffer(chance.bytes(len(part) // 2), np.uint8).repeat(2)[: len(part)]
    return memory


def run(children: int, path: Path, mebibytes: int) -> None:
    """Run the command line."""
    board = np.memmap(path, np.uint64, "r+")
    for _ in range(children):
        if os.fork() == 0:
            break
    main(board, (mebibytes << 20) // (children + 1) // mmap.PAGESIZE * mmap.PAGESIZE, children + 1)


run(int(sys.argv[1]) if len(sys.argv) > 3 else 0, Path(sys.argv[-2]), int(sys.argv[-1]))
