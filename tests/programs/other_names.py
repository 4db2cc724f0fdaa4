"""Two files that lost the name by which they were opened, and have another: `other_names.py WORKDIR PLACE OTHER [sem]`.

One is PLACE/file, mapped to write, with the name OTHER/file-PID. The other, with `sem`, is a POSIX named semaphore: the
C library makes it under another name, and maps it.
"""

import ctypes
import mmap
import os
import struct
import sys
from pathlib import Path

from selfcheck import PAGE, Program


def main() -> None:
    """Count in both, and find the count by the other name of each."""
    workdir, place, other = map(Path, sys.argv[1:4])
    mapped = _without_its_name(place / "file", other / f"file-{os.getpid()}")
    semaphore = _Semaphore(f"/crckpt-{os.getpid()}") if sys.argv[4:] else None
    program = Program(workdir)

    def step() -> None:
        mapped[:8] = struct.pack("<Q", program.counter)
        found = (other / f"file-{os.getpid()}").read_bytes()[:8]
        program.expect(found == mapped[:8], "its other name leads to another file")
        if semaphore is not None:
            semaphore.step(program)

    program.run(step)


def _without_its_name(path: Path, other: Path) -> mmap.mmap:
    with path.open("xb+") as file:
        file.truncate(PAGE)
        mapped = mmap.mmap(file.fileno(), PAGE)
        other.hardlink_to(path)
        path.unlink()
        return mapped


class _Semaphore:
    def __init__(self, name: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.sem_open.restype = ctypes.c_void_p
        self._own = ctypes.c_void_p(self._libc.sem_open(name.encode(), os.O_CREAT, 0o600, 1))
        self._path = Path(f"/dev/shm/sem.{name.removeprefix('/')}")

    def step(self, program: Program) -> None:
        self._libc.sem_post(self._own)
        value = ctypes.c_int()
        self._libc.sem_getvalue(self._own, ctypes.byref(value))
        (found,) = struct.unpack("<I", self._path.read_bytes()[:4])
        program.expect(found == value.value, f"the semaphore is {value.value}, and by its name {found}")


if __name__ == "__main__":
    main()
