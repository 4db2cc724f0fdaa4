"""A counter that holds files: one to read, one to write, one with a special mode, and a library that it has loaded.

Usage: held_files.py WORKDIR LIBRARY. The others are WORKDIR/read.txt, write.txt, mode.txt, and `link`: a symbolic link
to nothing, which is open itself.
"""

import ctypes
import os
import sys
from pathlib import Path

from selfcheck import Program


def main() -> None:
    """Hold the files open, and report the library's answer."""
    workdir = Path(sys.argv[1])
    program = Program(workdir)
    library = ctypes.CDLL(sys.argv[2])
    for name in ("read.txt", "write.txt", "mode.txt"):
        (workdir / name).write_text(f"this is {name}\n" * 100)
    (workdir / "mode.txt").chmod(0o640)
    os.open(workdir / "read.txt", os.O_RDONLY)
    os.open(workdir / "write.txt", os.O_RDWR)
    os.open(workdir / "mode.txt", os.O_RDONLY)
    (workdir / "link").symlink_to("nothing")
    os.open(workdir / "link", os.O_PATH | os.O_NOFOLLOW)

    def step() -> None:
        program.facts["answer"] = library.answer()

    program.run(step)


if __name__ == "__main__":
    main()
