"""A counter with a log that grows by a numbered line a tick, opened append-only."""

import os
import sys
from pathlib import Path

from selfcheck import Program


def main() -> None:
    """Append `line N` at each tick; the log must hold exactly what this process remembers having written."""
    workdir = Path(sys.argv[1])
    program = Program(workdir)
    fd = os.open(workdir / "growing.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    written = os.fstat(fd).st_size

    def step() -> None:
        nonlocal written
        found = os.fstat(fd).st_size
        program.expect(found == written, f"the log has {found} bytes, {written} were written")
        written += os.write(fd, f"line {program.counter}\n".encode())

    program.run(step)


if __name__ == "__main__":
    main()
