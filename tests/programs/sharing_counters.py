"""A root and N children that count in memory which all share. Usage: sharing_counters.py DIRECTORY N.

Each child counts in a word of its own, and adds the same to a sum, under a lock in the shared memory. Child K makes
DIRECTORY/count-K when it counts. The root writes into DIRECTORY/report, once a second, whether the sum is right.
"""

import ctypes
import mmap
import multiprocessing
import os
import sys
import time
from pathlib import Path

STEP_S = 0.01


def count(words: "ctypes.Array[ctypes.c_uint64]", lock: object, number: int, directory: Path) -> None:
    """Count for ever."""
    (directory / f"count-{number}").touch()
    while True:
        with lock:  # type: ignore[attr-defined]
            words[number + 1] += 1
            words[0] += 1
        time.sleep(STEP_S)


def main() -> None:
    """Start the children, and check them."""
    directory, children = Path(sys.argv[1]), int(sys.argv[2])
    os.chdir("/")
    area = mmap.mmap(-1, mmap.PAGESIZE)
    words = (ctypes.c_uint64 * (children + 1)).from_buffer(area)
    lock = multiprocessing.get_context("fork").Lock()
    for number in range(children):
        if os.fork() == 0:
            count(words, lock, number, directory)
    while True:
        time.sleep(100 * STEP_S)
        with lock:
            is_right = words[0] == sum(words[1:]) and min(words[1:]) > 0
        (directory / "report").write_text("intact" if is_right else "damaged")


if __name__ == "__main__":
    main()
