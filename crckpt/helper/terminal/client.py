"""Start the holder of a new terminal, and let it start the CRIU that restores the tree onto it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from crckpt.errors import HostCannot
from crckpt.helper.kinds import TERMINAL
from crckpt.helper.pid_namespace.client import PidNamespace, start_as_init
from crckpt.helper.start import StartedHelper, start_helper
from crckpt.helper.terminal.protocol import HeldTree, HolderAnswer, HolderRequest
from crckpt.host import proc
from crckpt.host.process import run
from crckpt.host.process.orphans import Ending
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.process.signals import woken_by_signals

_STARTS_S: Final = 60.0
# A program that has ended is reaped at once, unless the holder is stopped.
_REAPS_S: Final = 10.0


class TerminalHolder:
    """A holder that we have started. `slave` is our descriptor of the terminal, `log` the file with its output.

    `namespace` is the PID namespace of which it is the first process, if it is in one. It knows the programs there by
    their PIDs in it.
    """

    def __init__(self, helper: StartedHelper, slave: int) -> None:
        self._helper = helper
        self._ended: dict[int, int] = {}
        self.pid = helper.pid
        self.namespace = PidNamespace(helper.pid, helper.child.pid) if helper.pid != helper.child.pid else None
        self.slave = slave
        self.log = ""

    def wait_until_ready(self) -> None:
        """Wait until it holds the terminal. Raises HostCannot."""
        self.log = self._read_answer(_STARTS_S)[0].log

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        output: Path,
        keep: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        **_rest: Any,
    ) -> run.Child:
        """Start a program as `run.start`, but in the session of the terminal, which is its stdin."""
        request = HolderRequest("start", tuple(str(word) for word in argv), dict(environment or {}), tuple(keep))
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._helper.send(request, (descriptor, *keep))
        finally:
            os.close(descriptor)
        answer, descriptors = self._read_answer()
        return _HeldChild(self, answer.started, *descriptors)

    def find_ending(self, pid: int, outer: int) -> Ending | None:
        """Find how a child of the holder, whose PID we see as `outer`, has ended; None if it is alive."""
        with HeldProcess(outer) as process:
            if pid not in self._ended and process.is_alive:
                return None
        with suppress(HostCannot):
            while pid not in self._ended:
                self._receive(_REAPS_S)
        return Ending(os.waitstatus_to_exitcode(self._ended[pid])) if pid in self._ended else None

    def wait(self, pid: int) -> int:
        """Wait until a program that the holder is the parent of ends; return its wait status. Raises HostCannot.

        Signals are handled in the meantime.
        """
        with woken_by_signals() as wakeups:
            while pid not in self._ended:
                if wakeups.wait(self._helper.fileno()):
                    self._receive()
        return self._ended[pid]

    def commit(self, tree: HeldTree) -> str:
        """Report that the tree runs. Return why `crckpt attach` cannot reach the terminal; empty if it can."""
        try:
            self._helper.send(HolderRequest("commit", tree=tree))
            self._read_answer()
        except HostCannot as error:
            return error.message
        self._helper.child.abandon()
        return ""

    def abort(self) -> None:
        """End all that it has started, and the holder."""
        with suppress(HostCannot):
            self._helper.send(HolderRequest("abort"))
        self._helper.end()

    def _read_answer(self, within_s: float | None = None) -> tuple[HolderAnswer, list[int]]:
        """Read the answer to a request, with its descriptors. Raises HostCannot if that was refused."""
        while True:
            answer, descriptors = self._receive(within_s)
            if answer.failed:
                raise HostCannot(answer.failed)
            if answer.ended is None:
                return answer, descriptors

    def _receive(self, within_s: float | None = None) -> tuple[HolderAnswer, list[int]]:
        """Receive an answer, or the end of a program, which is noted."""
        answer, descriptors = self._helper.receive_descriptors(HolderAnswer, within_s)
        if answer.ended is not None:
            self._ended[answer.ended[0]] = answer.ended[1]
        return answer, descriptors


class _HeldChild(run.Child):
    """A program that the holder is the parent of, and knows by the PID `inner`."""

    def __init__(self, holder: TerminalHolder, inner: int, pidfd: int) -> None:
        self._holder = holder
        self._inner = inner
        self.pidfd = pidfd
        self.pid = proc.read_pidfd(pidfd)

    def wait(self) -> int:
        status = self._holder.wait(self._inner)
        self.close()
        return os.waitstatus_to_exitcode(status)

    def abandon(self) -> None:
        self.close()


@contextmanager
def held_terminal(
    job: str, taken: Collection[int], *, is_session: bool, in_namespace: bool
) -> Iterator[TerminalHolder]:
    """Make a terminal with a holder, whose PID is none of `taken`. If the block fails, both end.

    With `is_session` the holder leads the session of the terminal; without it the terminal has no session yet. It is
    `in_namespace` if it is the first process of a new PID namespace. Raises HostCannot.
    """
    with ExitStack() as stack:
        master, slave = os.openpty()
        for descriptor in (master, slave):
            stack.callback(os.close, descriptor)
        words = (str(master), str(slave), str(int(is_session)), job)
        keep = (master, slave)
        helper = (
            start_as_init(TERMINAL, *words, keep=keep)
            if in_namespace
            else start_helper(TERMINAL, *words, keep=keep, taken=taken)
        )
        holder = TerminalHolder(helper, slave)
        try:
            holder.wait_until_ready()
            yield holder
        except BaseException:
            holder.abort()
            raise
