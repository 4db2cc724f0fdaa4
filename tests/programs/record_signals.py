"""A counter that records signals: SIGTERM, SIGINT and SIGUSR1 by name; SIGUSR2 ends it with status 13."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from selfcheck import Program

STATUS = 13


def main() -> None:
    """Count, and report which signals came."""
    program = Program(Path(sys.argv[1]))
    names: list[str] = []

    def note(number: int, _frame: FrameType | None) -> None:
        names.append(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, note)
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(STATUS))

    def step() -> None:
        program.facts["signals"] = list(names)

    program.run(step)


if __name__ == "__main__":
    main()
