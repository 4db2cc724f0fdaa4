"""PID 1 of a new pid namespace: reaps what is orphaned, passes signals to the restored root, ends with its status.

Run as `python -m crckpt.host.namespaces.init ROOT READY OWNER [PLAN]`: ROOT is the PID that the restored root will have
in the namespace, READY a pipe's path to which a byte is written once signals are taken, OWNER a file that crckpt holds
locked until the tree is restored. When the root ends, or crckpt dies before it is there, this ends, and the kernel ends
what is left in the namespace.

With a PLAN (see `seclusion`), it runs in further namespaces, and ends when OWNER is unlocked, and never before.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from crckpt.host.process.signals import FORWARDED, handle_signal

_LOOK_S = 0.05


class _Root:
    """The restored root: `status` is what it ended with, once we have reaped it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def reap(self, *_: object) -> None:
        """Reap every ended child."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self.pid:
                    self.status = os.waitstatus_to_exitcode(ended[1])

    def wait(self) -> int:
        """Block until it has ended; as exit status of ours."""
        with suppress(ProcessLookupError):  # it ended, and was reaped, a moment ago
            select.select([os.pidfd_open(self.pid)], [], [])
            self.reap()
        return self.exit_status()

    def exit_status(self) -> int:
        """Its status as one of ours; 1 if it has not ended."""
        if self.status is None:
            return 1
        return self.status if self.status >= 0 else 128 - self.status


def main(pid: int, ready: str, owner: str, plan: str = "") -> int:
    """Serve until the root has ended, or with a plan until crckpt lets go; its exit status, or 128 plus its signal."""
    root = _Root(pid)
    # The kernel drops signals to a PID 1 that does not handle them.
    signal.signal(signal.SIGCHLD, root.reap)
    for number in FORWARDED:
        handle_signal(number, root.pass_on)
    lock = os.open(owner, os.O_RDWR | os.O_CLOEXEC)
    if plan:
        from crckpt.host.namespaces.isolation import seclude

        seclude(Path(plan))
    descriptor = os.open(ready, os.O_RDWR)
    os.write(descriptor, b".")
    os.close(descriptor)
    if plan:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return root.exit_status()
    while root.status is None and not _exists(pid):
        if not _is_awaited(lock):
            return 1
        select.select([], [], [], _LOOK_S)
    os.close(lock)
    status = root.wait()
    # A CRIU that is ending the tree works in here: if we ended now, the kernel would end it in the middle of its work.
    while _has_visitors():
        select.select([], [], [], _LOOK_S)
    return status


def _is_awaited(lock: int) -> bool:
    """Whether crckpt still holds its lock; the kernel frees it when crckpt dies."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _has_visitors() -> bool:
    """Whether a process whose parent is outside the namespace runs in it (nsenter): it shows 0 as its parent."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and path.name != "1":
            with suppress(OSError):
                fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z" and fields[1] == "0":
                    return True
    return False


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
    except OSError as error:
        sys.exit(str(error))
