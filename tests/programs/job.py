"""A program for a prompt. It counts in the file `count` of its directory, and shows its size when that changes.

`job.py DIRECTORY [--raw] [--catch] [--talk]`: with --raw it draws a screen; with --catch it writes the names of signals
to the file `signals`, and does not end; with --talk it prints its counter. If the file `read` appears, it reads a line,
and prints that or ends with 7.
"""

import os
import select
import signal
import sys
import tty
from pathlib import Path

WORKDIR = Path(sys.argv[1])
TYPED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)


def caught(number: int, _frame: object) -> None:
    with (WORKDIR / "signals").open("a") as file:
        file.write(f"{signal.Signals(number).name}\n")
    if number == signal.SIGWINCH and os.isatty(1):
        size = os.get_terminal_size()
        clear = b"\x1b[2J\x1b[H" if "--raw" in sys.argv else b""
        os.write(1, clear + f"drawn {size.columns} {size.lines}\r\n".encode())


def main() -> None:
    """Count until it is ended, or its input ends."""
    for number in (signal.SIGWINCH, *(TYPED if "--catch" in sys.argv else ())):
        signal.signal(number, caught)
    if "--raw" in sys.argv:
        tty.setraw(0)
    os.write(1, f"pid {os.getpid()}\r\n".encode())
    count = 0
    while True:
        count += 1
        file = WORKDIR / "count.new"
        file.write_text(f"{os.getpid()} {count}")
        file.rename(WORKDIR / "count")
        if "--talk" in sys.argv:
            os.write(1, f"says {count}\n".encode())
        if (WORKDIR / "read").exists():
            (WORKDIR / "read").unlink()
            line = os.read(0, 4096)
            if not line:
                sys.exit(7)
            os.write(1, b"got " + line)
        select.select([], [], [], 0.02)


if __name__ == "__main__":
    main()
