"""Store an image directory, or read it back, and say how many bytes of memory that took at most: see `memory.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import crckpt.store.packing
import crckpt.store.reading  # noqa: F401 - what modules take is not to be counted
from benchmark.one_way import new
from crckpt.store import Repository, ingest, reader


def main() -> None:
    """Do as the command line says."""
    act, store, images = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    repository = Repository.open(store, create=True)
    # What is mapped from files can be taken back, as the page cache.
    before = _most()
    if act == "ingest":
        ingest(repository, images, new())
    else:
        (checkpoint,) = repository.checkpoints()
        with reader(repository, checkpoint) as reading:
            for file in reading.files:
                for _ in reading.parts(file):
                    pass
    sys.stdout.write(str(_most() - before))


def _most() -> int:
    """Resident memory at its height (getrusage would count what our parent had, too)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


if __name__ == "__main__":
    main()
