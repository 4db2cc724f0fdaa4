"""Make a tree of a given shape that then idles, for `predictions.py`.

Usage: shapes.py READY PROCESSES MEBIBYTES CONTENT DESCRIPTORS THREADS, the last four per process. CONTENT is random or
zeros. The file READY appears when the tree is complete. The children end with the root.
"""

import mmap
import os
import sys
import threading
from pathlib import Path

PAGE = 4096
FILLED_EVERY = 50


def main(ready: str, processes: str, mebibytes: str, content: str, descriptors: str, threads: str) -> None:
    """Start the children, fill all, then wait for ever."""
    reading, writing = os.pipe()
    filled, filling = os.pipe()
    for _ in range(int(processes) - 1):
        if os.fork() == 0:
            os.close(writing)
            kept = take(int(mebibytes) << 20, content, int(descriptors), int(threads))
            os.write(filling, b"1")
            os.read(reading, 1)
            os._exit(len(kept) & 0)
    kept = take(int(mebibytes) << 20, content, int(descriptors), int(threads))
    for _ in range(int(processes) - 1):
        os.read(filled, 1)
    Path(ready).touch()
    threading.Event().wait()
    kept.close()


def take(size: int, content: str, descriptors: int, threads: int) -> mmap.mmap:
    """Take private resident memory, descriptors and threads."""
    memory = mmap.mmap(-1, max(size, PAGE), mmap.MAP_PRIVATE)
    for number, at in enumerate(range(0, size, PAGE)):
        if content == "random" or number % FILLED_EVERY == 0:
            memory[at : at + PAGE] = os.urandom(PAGE)
        else:
            memory[at] = 0
    for _ in range(descriptors):
        os.open("/dev/null", os.O_RDONLY)
    for _ in range(threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return memory


main(*sys.argv[1:])
