"""The processes of a host, through its /proc: a driver calls these functions, or runs this program on the host.

Usage: processes.py list | signal PID START NUMBER
"""

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

KILLED: Final = "K"
_EXITING: Final = 0x4  # PF_EXITING, linux/sched.h
_PENDING: Final = re.compile(rb"^S(?:ig|hd)Pnd:\t([0-9a-f]+)", re.MULTILINE)


class Entry(NamedTuple):
    """A process: its PID, its start in ticks since the boot, its state as in proc_pid_stat(5), its command's words.

    The state is `KILLED` if it was killed and has not ended yet: it does nothing any more.
    """

    pid: int
    start: int
    state: str
    command: tuple[str, ...]


def list_processes(proc: Path) -> list[Entry]:
    """Return all processes there; kernel threads and zombies have no words."""
    found = []
    for directory in proc.iterdir():
        if directory.name.isdecimal():
            # It may end while we read.
            with suppress(FileNotFoundError, ProcessLookupError):
                state, start, flags = _read_stat((directory / "stat").read_bytes())
                # A killed process is awake, or cannot wake up.
                if state in "RD" and (flags & _EXITING or _is_killed((directory / "status").read_bytes())):
                    state = KILLED
                words = (directory / "cmdline").read_text(errors="replace").split("\0")[:-1]
                found.append(Entry(int(directory.name), start, state, tuple(words)))
    return sorted(found)


def send_signal(proc: Path, pid: int, start: int, number: int) -> bool:
    """Send a signal to the process with this PID and start; return whether there was such a process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        process = os.open(proc / str(pid), os.O_RDONLY | os.O_DIRECTORY)
        try:
            stat = os.open("stat", os.O_RDONLY, dir_fd=process)
            with open(stat, "rb") as file:  # noqa: PTH123 - a descriptor
                found = _read_stat(file.read())[1]
            if found == start:
                signal.pidfd_send_signal(process, number)
                return True
        finally:
            os.close(process)
    return False


def _read_stat(content: bytes) -> tuple[str, int, int]:
    """Return the state, the start and the kernel's flags."""
    fields = content.decode(errors="replace").rpartition(") ")[2].split()
    return fields[0], int(fields[19]), int(fields[6])


def _is_killed(status: bytes) -> bool:
    """Return whether a SIGKILL is pending."""
    return any(int(pending, 16) >> (signal.SIGKILL - 1) & 1 for pending in _PENDING.findall(status))


def main() -> None:
    """Run the command line."""
    if sys.argv[1] == "list":
        json.dump(list_processes(Path("/proc")), sys.stdout)
    else:
        sys.exit(not send_signal(Path("/proc"), *map(int, sys.argv[2:])))


if __name__ == "__main__":
    main()
