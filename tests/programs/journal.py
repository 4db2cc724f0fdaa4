"""A counter that writes a numbered line a tick to WORKDIR/journal.log, and reports the size that the file should have.

Usage: journal.py WORKDIR append|read|plain|twins. `read` opens the file for appending and for reading, `plain` does not
open it for appending; `twins` are two processes, each with its own descriptor of one append-only file.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

from selfcheck import Program, fork


def main() -> None:
    """Write from one process or from two."""
    workdir, kind = Path(sys.argv[1]), sys.argv[2]
    if kind == "twins":
        fork(lambda: keep(Program(workdir, "twin"), "append", "twin "))
        keep(Program(workdir, parts=("twin",)), "append", "root ")
    keep(Program(workdir), kind, "line ")


def keep(program: Program, kind: str, word: str) -> NoReturn:
    """Write `word N` at each tick; fact `log` is the file's size and the bytes written by this process, both before."""
    flags = {"append": os.O_WRONLY | os.O_APPEND, "read": os.O_RDWR | os.O_APPEND, "plain": os.O_WRONLY}[kind]
    fd = os.open(program.workdir / "journal.log", flags | os.O_CREAT, 0o600)
    written = 0

    def step() -> None:
        nonlocal written
        program.facts["log"] = [os.fstat(fd).st_size, written]
        written += os.write(fd, f"{word}{program.counter}\n".encode())

    program.run(step)


if __name__ == "__main__":
    main()
