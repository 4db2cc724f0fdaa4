"""Take an id: usage taker.py NUMBER PID|thread|group|session. Prints `taken` and keeps it until it is ended.

A child whose leader had the id and has ended keeps a group or session.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

TRIES: Final = 200
LAST: Final = Path("/proc/sys/kernel/ns_last_pid")


def main() -> None:
    """Take it as requested."""
    number, kind = int(sys.argv[1]), sys.argv[2]
    if kind == "PID" and os.getpid() == number:
        hold()
    if kind == "thread":
        take_thread(number)
    pid = take_pid(number)
    if pid:
        os.waitpid(pid, 0)
    elif kind == "PID":
        hold()
    else:
        leave_behind(kind)


@contextmanager
def counting_from(number: int) -> Iterator[None]:
    """Let the next PID come after that one, and afterwards no more; also wait for processes given up."""
    before = int(LAST.read_text())
    LAST.write_text(str(number))
    yield
    LAST.write_text(str(max(before, int(LAST.read_text()))))


def take_pid(number: int) -> int:
    """Fork a child with that PID: 0 in the child, its PID here. Others fork too, so that it may need some tries."""
    for _ in range(TRIES):
        with counting_from(number - 1):
            pid = os.fork()
        if pid == 0 and os.getpid() != number:
            os._exit(0)
        if pid in (0, number):
            return pid
        os.waitpid(pid, 0)
    sys.exit(f"cannot get PID {number}")


def take_thread(number: int) -> NoReturn:
    """Start threads until one has that id."""
    for _ in range(TRIES):
        release = threading.Event()
        thread = threading.Thread(target=release.wait)
        with counting_from(number - 1):
            thread.start()
        if thread.native_id == number:
            hold()
        release.set()
        thread.join()
    sys.exit(f"cannot get thread {number}")


def leave_behind(kind: str) -> None:
    """Lead a new session, leave a child in it and end; for `session` the child leads a group of its own."""
    os.setsid()
    if os.fork() == 0:
        if kind == "session":
            os.setpgid(0, 0)
        hold()


def hold() -> NoReturn:
    """Report that it is done, and stay."""
    os.write(1, f"taken by {os.getpid()}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
