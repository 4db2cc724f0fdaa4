"""A counter that also writes its numbers to standard output; with `--listen` it reads words from standard input.

The facts have the words that came, and the number of SIGINTs.
"""

import os
import select
import signal
import sys
from pathlib import Path

from selfcheck import Program


def main() -> None:
    """Talk and listen, without buffering."""
    program = Program(Path(sys.argv[1]))
    listens = "--listen" in sys.argv
    lines: list[str] = []
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(program.counter))

    def step() -> None:
        os.write(1, f"says {program.counter}\n".encode())
        if listens and select.select([0], [], [], 0)[0]:
            lines.extend(os.read(0, 4096).decode().split())
        program.facts["heard"] = list(lines)
        program.facts["interrupts"] = len(interrupts)

    program.run(step)


if __name__ == "__main__":
    main()
