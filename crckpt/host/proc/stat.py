"""/proc/PID/stat and /proc/PID/task/TID/stat. Source: proc_pid_stat(5)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.proc import procfs

_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD, linux/sched.h


class Stat(Struct, frozen=True):
    """The name of a task, and the other fields as text, from the third on: the numbers in proc_pid_stat(5) less 3."""

    comm: str
    fields: tuple[str, ...]

    @property
    def state(self) -> str:
        """The letter of its state."""
        return self.fields[0]

    @property
    def ppid(self) -> int:
        """PID of its parent."""
        return int(self.fields[1])

    @property
    def pgid(self) -> int:
        """Its process group."""
        return int(self.fields[2])

    @property
    def sid(self) -> int:
        """Its session."""
        return int(self.fields[3])

    @property
    def terminal(self) -> int:
        """The device of its controlling terminal; 0 if it has none."""
        # The kernel writes 12 bits of the major number between the halves of the minor one (linux/kdev_t.h).
        number = int(self.fields[4])
        return os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00)

    @property
    def foreground(self) -> int:
        """The process group in the foreground of its terminal; -1 if there is none."""
        return int(self.fields[5])

    @property
    def flags(self) -> int:
        """The kernel's flags of the task (linux/sched.h: PF_...)."""
        return int(self.fields[6])

    @property
    def is_kernel_thread(self) -> bool:
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def major_faults(self) -> int:
        """Pages that it had to read from disks."""
        return int(self.fields[9])

    @property
    def cpu_ticks(self) -> int:
        """CPU time in user and kernel mode, in clock ticks."""
        return int(self.fields[11]) + int(self.fields[12])

    @property
    def start(self) -> int:
        """The start time, in clock ticks after boot."""
        return int(self.fields[19])

    @property
    def layout(self) -> tuple[int, int, int]:
        """The addresses of the start and end of its code and the start of its stack; zeros if we may not trace it."""
        return int(self.fields[23]), int(self.fields[24]), int(self.fields[25])

    @property
    def exit_signal(self) -> int:
        """The signal that its parent gets when it ends."""
        return int(self.fields[35])

    @property
    def cpu(self) -> int:
        """The number of the core that it ran on last."""
        return int(self.fields[36])

    @property
    def wait_status(self) -> int:
        """The wait status of a zombie, as wait(2) has it."""
        return int(self.fields[49])


def read_stat(pid: int, tid: int | None = None, *, proc: str | Path = "/proc") -> Stat:
    """Read the stat of a process or of one thread. Raises OSError.

    `proc` is another PID namespace's /proc.
    """
    task = f"{proc}/{pid}" if tid is None else f"{proc}/{pid}/task/{tid}"
    return parse_stat(procfs.text(f"{task}/stat"))


def parse_stat(text: str) -> Stat:
    """Take apart what such a file says."""
    # The name may hold anything, but ends at the last parenthesis.
    end = text.rindex(")")
    return Stat(text[text.index("(") + 1 : end], tuple(text[end + 2 :].split()))


def start_time(pid: int) -> int | None:
    """Read the start time of the process with that PID, in clock ticks after boot; None if there is none."""
    try:
        return read_stat(pid).start
    except (FileNotFoundError, ProcessLookupError):
        return None
