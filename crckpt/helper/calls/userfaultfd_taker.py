"""The helper process that takes a userfaultfd of other processes, or closes one of their descriptors.

It enters each process from its own child. It ends within seconds, unless a process gets no CPU time in the middle of
the call. If the helper dies, the kernel releases the process.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from crckpt.errors import HostCannot
from crckpt.helper.calls.take_userfaultfd import TakeOrder, TakeOrders, TakeResult
from crckpt.helper.channel import Channel, HelperEnded, open_control
from crckpt.helper.kinds import USERFAULTFD_TAKER
from crckpt.host.proc import Identity
from crckpt.host.proc.fd import read_target
from crckpt.host.process.pidfd import borrow
from crckpt.host.syscalls import ptrace

# userfaultfd, close: x86-64 and 32-bit
_NUMBERS: Final = {False: (323, 3), True: (374, 6)}
_USER_MODE_ONLY: Final = 1
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY


def main(number: str) -> None:
    """Enter each process of the orders that come over this descriptor, and send the result."""
    _block_signals_and_oom()
    control = open_control(USERFAULTFD_TAKER, number)
    for order in control.receive(TakeOrders).orders:
        # Use a child for each process: a thread that cannot be stopped stays seized until its tracer ends.
        child = os.fork()
        if child == 0:
            _enter(order, control)
        os.waitpid(child, 0)


def _block_signals_and_oom() -> None:
    """Block signals, and be spared when memory runs out."""
    # A thread may be in the middle of our call, for about a millisecond. If its tracer dies then, the thread runs on
    # with our registers, and the program ends. Nothing helps against SIGKILL.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")


def _enter(order: TakeOrder, control: Channel) -> NoReturn:
    pid, descriptors = order.process.pid, []
    try:
        result = TakeResult(pid, -1)
        try:
            descriptors = [take_one(order.process)] if order.surplus < 0 else _close_in(order)
        except HostCannot as error:
            result = TakeResult(pid, -1, error.message, error.hint)
        except OSError as error:
            result = TakeResult(pid, -1, f"PID {pid} cannot be entered: {error.strerror or error}")
        control.send(result, descriptors)
    finally:
        os._exit(0)


def take_one(
    process: Identity, flags: int = _FLAGS, use: Callable[[ptrace.StoppedThread, int, int], None] | None = None
) -> int:
    """Take a userfaultfd of a process. Raises HostCannot, OSError.

    Before the process loses it, `use` gets the thread, its descriptor and ours.
    """
    pid = process.pid
    with ptrace.stopped(pid, identity=process) as thread:
        make, close = _NUMBERS[thread.is_compat]
        theirs = thread.system_call(make, flags, within_s=ptrace.STOPS_WITHIN_S)
        if theirs < 0:
            raise _refusal(pid, -theirs)
        try:
            ours = borrow(pid, theirs)
            if use is not None:
                use(thread, theirs, ours)
        finally:
            # CRIU refuses a program that has one. Another thread may have put another file in its place (dup2): check
            # this right before closing.
            if _is_userfaultfd(thread.tid, theirs):
                thread.system_call(close, theirs)
    if not _is_userfaultfd(os.getpid(), ours):
        raise HostCannot(f"PID {pid}: another thread has taken the number of crckpt's descriptor", hint="try again")
    return ours


def _is_userfaultfd(tid: int, descriptor: int) -> bool:
    """Return whether a descriptor is one, in the table of this thread: it may have its own table."""
    with suppress(OSError):
        return read_target(tid, descriptor) == "anon_inode:[userfaultfd]"
    return False


def _close_in(order: TakeOrder) -> list[int]:
    with ptrace.stopped(order.process.pid, identity=order.process) as thread:
        if _is_userfaultfd(thread.tid, order.surplus):
            thread.system_call(_NUMBERS[thread.is_compat][1], order.surplus, within_s=ptrace.STOPS_WITHIN_S)
    return []


def _refusal(pid: int, number: int) -> HostCannot:
    if number == errno.EMFILE:
        return HostCannot(
            f"PID {pid} has no free file descriptor (RLIMIT_NOFILE)", hint=f"prlimit --pid {pid} --nofile=N: raise it"
        )
    return HostCannot(f"userfaultfd is forbidden to PID {pid}: {os.strerror(number)}")


if __name__ == "__main__":
    # Who asked may have ended.
    with suppress(HelperEnded):
        main(sys.argv[1])
