"""A program whose name and maps are not valid text: with line ends, and cut in the middle of a character."""

import ctypes
import mmap
import os
import sys
from pathlib import Path

from selfcheck import PAGE, Program, digest, pattern

LIBC = ctypes.CDLL(None, use_errno=True)
OWN = b"a\rb\x0cc\xc2\x85\xe2\x80\xa8\xc3"
OF_MAPS = (b"x\ry", b"x\x0cy", b"x\xe2\x80\xa8y", b"\xff", b"line\nfeed")
PR_SET_NAME = 15


def main() -> None:
    """Keep the name and the content of the maps."""
    assert LIBC.prctl(PR_SET_NAME, OWN, 0, 0, 0) == 0
    program = Program(Path(sys.argv[1]))
    maps = [mapped(name) for name in OF_MAPS]

    def step() -> None:
        program.facts["name"] = Path("/proc/self/comm").read_bytes().hex()
        program.facts["maps"] = [digest(one) for one in maps]

    program.run(step)


def mapped(name: bytes) -> mmap.mmap:
    """Map memory with that name."""
    descriptor = LIBC.memfd_create(name, 0)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    os.ftruncate(descriptor, 4 * PAGE)
    found = mmap.mmap(descriptor, 4 * PAGE)
    found[:] = pattern(name.hex(), 4 * PAGE)
    return found


if __name__ == "__main__":
    main()
