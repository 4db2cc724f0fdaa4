"""PID 1 of a new pid namespace: it reaps orphans, forwards signals to the restored root, and ends with its status.

Run as `python -m crckpt.host.namespaces.init ROOT READY OWNER [PLAN]`: ROOT is the PID that the restored root will have
in the namespace, READY the path of a pipe to which it writes a byte once it handles signals, OWNER a file that crckpt
keeps locked until the tree is restored. It ends when the root ends, or if crckpt dies before the root exists. Then the
kernel ends the other processes of the namespace.

With a PLAN (see `isolation`) it runs in further namespaces, and ends only when OWNER is unlocked.
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

from crckpt.host.process.signals import FORWARDED, handle_signal, send_signal_if, woken_by_signals

_LOOK_S = 0.05


class _Root:
    """The restored root. `status` is its wait status after we have reaped it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        send_signal_if(self.pid, number, lambda: self.status is None)

    def reap(self, *_: object) -> None:
        """Reap every ended child."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self.pid:
                    self.status = os.waitstatus_to_exitcode(ended[1])

    def is_there(self) -> bool:
        """Return whether it exists, or has ended and was reaped."""
        # In this order: it may be reaped, by a signal handler, between the two.
        return Path(f"/proc/{self.pid}").exists() or self.status is not None

    def wait(self) -> None:
        """Block until it has ended; handle signals in the meantime."""
        with suppress(ProcessLookupError), woken_by_signals() as wakeups:  # it ended, and was reaped, a moment ago
            ended = os.pidfd_open(self.pid)
            while not wakeups.wait(ended):
                pass

    def exit_status(self) -> int:
        """Its status as our exit status; 1 if it has not ended."""
        self.reap()
        if self.status is None:
            return 1
        return self.status if self.status >= 0 else 128 - self.status


def main(pid: int, ready: str, owner: str, plan: str = "") -> int:
    """Serve until the root has ended, or with a plan until crckpt unlocks OWNER.

    Return the root's exit status, or 128 plus its signal.
    """
    # Handle signals before writing to READY: crckpt forwards signals after that, and none must get lost.
    root = _Root(pid)
    # The kernel drops signals to a PID 1 that does not handle them.
    signal.signal(signal.SIGCHLD, root.reap)
    for number in FORWARDED:
        handle_signal(number, root.pass_on)
    lock = os.open(owner, os.O_RDWR | os.O_CLOEXEC)
    if plan:
        # Only rehearsals need it.
        from crckpt.host.namespaces.isolation import seclude

        seclude(Path(plan))
    # For reading, too, so that it does not wait for a reader.
    descriptor = os.open(ready, os.O_RDWR)
    os.write(descriptor, b".")
    os.close(descriptor)
    if plan:
        # Returns when crckpt unlocks the file, or dies.
        fcntl.flock(lock, fcntl.LOCK_SH)
        return root.exit_status()
    while True:
        # The lock first: if we looked at it last, the root could come, and the lock be freed, between the two.
        is_awaited = _is_awaited(lock)
        if root.is_there():
            break
        # crckpt has died: no root will come.
        if not is_awaited:
            return 1
        select.select([], [], [], _LOOK_S)
    os.close(lock)
    root.wait()
    # CRIU may be ending the tree in here: if we ended now, the kernel would end CRIU, too.
    while _has_visitors():
        select.select([], [], [], _LOOK_S)
    # Only now: a root that ended before CRIU, its parent, becomes our child when CRIU ends.
    return root.exit_status()


def _is_awaited(lock: int) -> bool:
    """Return whether crckpt still holds its lock; the kernel frees it when crckpt dies."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _has_visitors() -> bool:
    """Return whether a process with a parent outside the namespace runs in it (nsenter): its parent is shown as 0."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and path.name != "1":
            with suppress(OSError):
                fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z" and fields[1] == "0":
                    return True
    return False


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
    except OSError as error:
        sys.exit(str(error))
