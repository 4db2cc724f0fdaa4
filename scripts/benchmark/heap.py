"""A Python process of a given size with arrays, dictionaries and lists; 10 % of its pages are zero, 10 % duplicates.

Usage: heap.py BOARD MEBIBYTES. BOARD is a file that it shares with the benchmark, see `targets.py`. It reads the clock
every millisecond, records each gap, and changes single objects on request.
"""

import gc
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = 4096
STILL_NS = 3_000_000
GAPS = 200
AT_ONCE = 50


def main(path: Path, mebibytes: int) -> None:
    """Fill the memory, then tick for ever."""
    gc.disable()
    heap = fill(mebibytes << 20)
    gc.freeze()
    board = np.memmap(path, np.uint64, "r+")
    board[0] = 1
    last = time.monotonic_ns()
    while True:
        time.sleep(0.001)
        now = time.monotonic_ns()
        if now - last > STILL_NS:
            spot = 8 + 2 * (int(board[4]) % GAPS)
            board[spot : spot + 2] = last, now
            board[4] += 1
        last = now
        board[3] += 1
        for _ in range(min(int(board[1] - board[2]), AT_ONCE)):
            heap.change()
            board[2] += 1


@dataclass
class Heap:
    """The content of the memory."""

    arrays: list[npt.NDArray[Any]]
    people: dict[str, tuple[int, float, str]]
    rows: list[list[int | str]]
    chance: random.Random

    def change(self) -> None:
        """Change one object or number."""
        match self.chance.randrange(4):
            case 0:
                n = self.chance.randrange(len(self.people))
                self.people[f"person-{n}"] = (n, self.chance.random(), f"{n * 31 % 10007} another street {n % 97}")
            case 1:
                n = self.chance.randrange(len(self.rows))
                self.rows[n] = [n, str(self.chance.randrange(1 << 40)), -n]
            case number:
                array = self.arrays[number]
                array[self.chance.randrange(len(array))] += 1


def fill(size: int) -> Heap:
    """Return arrays, a dictionary and a list that take about `size` bytes together."""
    rng = np.random.default_rng(1)
    same = rng.integers(0, 1 << 12, PAGE * 64 // 8)
    arrays = [
        np.full(size * 9 // 100 // 8, 0.0),
        np.tile(same, max(1, size * 10 // 100 // same.nbytes)),
        rng.normal(size=size * 22 // 100 // 8),
        rng.integers(0, 1 << 20, size * 19 // 100 // 8),
    ]
    people = {
        f"person-{n}": (n, n * 0.37, f"{n * 7919 % 10007} some street in town {n % 97}")
        for n in range(size * 25 // 100 // 330)
    }
    rows: list[list[int | str]] = [[n, str(n * n), -n] for n in range(size * 15 // 100 // 216)]
    return Heap(arrays, people, rows, random.Random(1))


main(Path(sys.argv[1]), int(sys.argv[2]))
