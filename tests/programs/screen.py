"""A program that takes the whole screen of its terminal and each key by itself, as editors do; `q` ends it with 7."""

import os
import select
import signal
import sys
import termios
import tty
from pathlib import Path

from selfcheck import Program

ENTERED = b"\x1b[?1049h\x1b[?2004h"
"""The alternate screen, which `a` brings."""


def main() -> None:
    """Draw the size of the screen and the last key, at every key and every change of the size."""
    program = Program(Path(sys.argv[1]))
    changes: list[int] = []
    signal.signal(signal.SIGWINCH, lambda *_: changes.append(program.counter))
    tty.setraw(0, termios.TCSANOW)
    keys: list[str] = []
    drawn = [-1]

    def step() -> None:
        if select.select([0], [], [], 0)[0]:
            typed = os.read(0, 4096).decode()
            if "q" in typed:
                os._exit(7)
            if "a" in typed:
                os.write(1, ENTERED)
            keys.append(repr(typed))
        size = os.get_terminal_size(0)
        program.facts["keys"] = list(keys)
        program.facts["size"] = [size.columns, size.lines]
        if drawn[0] != len(keys) + len(changes):
            drawn[0] = len(keys) + len(changes)
            shown = f"\x1b[H\x1b[2Jscreen of {size.columns}x{size.lines}, keys: {' '.join(keys)}"
            os.write(1, shown.encode())

    program.run(step)


if __name__ == "__main__":
    main()
