"""Store an image directory, read it back, or write its pages into a process; print the peak memory. See `memory.py`."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import crckpt.store.read.reader
import crckpt.store.write.packing  # noqa: F401 - do not count the memory of modules
from benchmark.store_once import new
from crckpt.images.private_memory import MemoryRange
from crckpt.store import Repository, ingest, open_reader

ADDRESS = 1 << 32
"""The address of the first page in the image directory."""

_MAP_FIXED_NOREPLACE = 0x100000  # asm-generic/mman-common.h


def main() -> None:
    """Run the command line."""
    act, store, images = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    repository = Repository.open(store, create=True)
    # Do not count mapped files: the kernel can take that memory back, like the page cache.
    before = _most()
    if act == "ingest":
        ingest(repository, images, new())
    elif act == "place":
        (checkpoint,) = repository.checkpoints()
        with open_reader(repository, checkpoint) as reading, _process(int(sys.argv[4])) as pid:
            size = int(sys.argv[4])
            placed = reading.set_apart(
                {"pagemap-1.img": (MemoryRange(ADDRESS, ADDRESS + size, wants_huge_pages=False),)}
            )
            placed.begin()
            placed.fill({"pagemap-1.img": pid}, lambda _more: None)
    else:
        (checkpoint,) = repository.checkpoints()
        with open_reader(repository, checkpoint) as reading:
            for file in reading.files:
                for _ in reading.parts(file):
                    pass
    sys.stdout.write(str(_most() - before))


@contextmanager
def _process(size: int) -> Iterator[int]:
    """Run a process with this many bytes of memory from ADDRESS on."""
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
        prot = mmap.PROT_READ | mmap.PROT_WRITE
        libc.mmap(ctypes.c_void_p(ADDRESS), ctypes.c_size_t(size), prot, flags, -1, ctypes.c_long(0))
        os.write(told, b".")
        signal.pause()
    try:
        os.read(ready, 1)
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _most() -> int:
    """Return the peak of resident memory (getrusage would also count what our parent had)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


if __name__ == "__main__":
    main()
