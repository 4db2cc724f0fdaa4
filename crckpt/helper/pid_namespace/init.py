"""PID 1 of a new PID namespace: it reaps orphans, forwards signals to the restored root, and ends with its status.

Run as `python -m crckpt.helper.pid_namespace.init CHANNEL ROOT [rehearsal]`: ROOT is the PID that the restored root
will have in the namespace. It answers on the channel once it handles signals. It ends when the root ends, or if crckpt
closes the channel, or dies, before the root exists. Then the kernel ends the other processes of the namespace.

For a rehearsal it gets a `SeclusionPlan`, carries it out, and ends only when crckpt closes the channel, or dies.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from msgspec import Struct

from crckpt.helper.channel import HelperEnded, open_control
from crckpt.helper.kinds import INIT
from crckpt.host.proc.procfs import has_visitors
from crckpt.host.process.signals import FORWARDED, handle_signal, send_signal_if, woken_by_signals

_LOOK_S = 0.05


class InitAnswer(Struct, frozen=True):
    """It is ready. `unwritable` are the mount points that could get no overlay in a rehearsal."""

    unwritable: tuple[str, ...] = ()


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


def main(number: str, pid: int, *, is_rehearsal: bool) -> int:
    """Serve until the root has ended, or in a rehearsal until crckpt closes the channel.

    Return the root's exit status, or 128 plus its signal.
    """
    # Handle signals before the answer: crckpt forwards signals after that, and none must get lost.
    root = _Root(pid)
    # The kernel drops signals to a PID 1 that does not handle them.
    signal.signal(signal.SIGCHLD, root.reap)
    for forwarded in FORWARDED:
        handle_signal(forwarded, root.pass_on)
    control = open_control(INIT, number)
    unwritable: tuple[str, ...] = ()
    if is_rehearsal:
        # Only rehearsals need it.
        from crckpt.host.namespaces.isolation import SeclusionPlan, seclude

        unwritable = seclude(control.receive(SeclusionPlan))
    with suppress(HelperEnded):
        control.send(InitAnswer(unwritable))
    if is_rehearsal:
        with woken_by_signals() as wakeups:
            while not control.has_ended():
                wakeups.wait(control.fileno())
        return root.exit_status()
    while True:
        # The channel first: if we looked at it last, the root could come, and crckpt go, between the two.
        has_ended = control.has_ended()
        if root.is_there():
            break
        # crckpt has died: no root will come.
        if has_ended:
            return 1
        select.select([control], [], [], _LOOK_S)
    control.close()
    root.wait()
    # CRIU may be ending the tree in here: if we ended now, the kernel would end CRIU, too.
    while has_visitors():
        select.select([], [], [], _LOOK_S)
    # Only now: a root that ended before CRIU, its parent, becomes our child when CRIU ends.
    return root.exit_status()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), is_rehearsal="rehearsal" in sys.argv[3:]))
    except OSError as error:
        sys.exit(str(error))
