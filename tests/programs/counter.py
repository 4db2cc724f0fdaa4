"""The simplest program: a counter, memory (`--mib N`), its user, and a file read half-way."""

import argparse
import os
from pathlib import Path

from selfcheck import Program, pattern

CHUNK = 64


def main() -> None:
    """Count, and read a file chunk by chunk from where the last read ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--mib", type=float, default=0.25)
    given = parser.parse_args()
    program = Program(given.workdir, memory=int(given.mib * (1 << 20)))
    content = pattern("half-read", 1 << 20)
    path = given.workdir / "half-read.bin"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    second = os.dup(fd)

    def step() -> None:
        at = program.counter * CHUNK % len(content)
        if at == 0:
            os.lseek(fd, 0, os.SEEK_SET)
        start = os.lseek(second, 0, os.SEEK_CUR)
        program.expect(os.read(fd, CHUNK) == content[start : start + CHUNK], f"wrong bytes at {start}")
        program.expect(os.lseek(second, 0, os.SEEK_CUR) == start + CHUNK, "the two descriptors have parted")
        program.facts["user"] = [*os.getresuid(), *os.getresgid(), *os.getgroups()]

    program.run(step)


if __name__ == "__main__":
    main()
