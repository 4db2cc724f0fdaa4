"""The helper process that takes a userfaultfd of other processes, or closes one of their descriptors.

`python -m crckpt.host.process.userfaultfd_taker SOCKET PID-START[:DESCRIPTOR]...` enters each process from its own
child. It ends within seconds, unless a process gets no CPU time in the middle of the call. If the helper dies, the
kernel releases the process.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from crckpt.errors import HostCannot
from crckpt.host.proc import Identity, parse_identity
from crckpt.host.proc.fd import read_target
from crckpt.host.process.take_userfaultfd import TakeResult
from crckpt.host.syscalls import ptrace
from crckpt.host.syscalls.pidfd_getfd import borrow

# userfaultfd, close: x86-64 and 32-bit
_NUMBERS: Final = {False: (323, 3), True: (374, 6)}
_USER_MODE_ONLY: Final = 1
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY


def main(words: list[str]) -> int:
    """Enter each process in turn, and send the result to the socket."""
    _block_signals_and_oom()
    with socket.socket(fileno=int(words[0])) as speaking:
        for word in words[1:]:
            name, _, surplus = word.partition(":")
            process = parse_identity(name)
            assert process is not None
            # Use a child for each process: a thread that cannot be stopped stays seized until its tracer ends.
            child = os.fork()
            if child == 0:
                _enter(process, int(surplus or -1), speaking)
            os.waitpid(child, 0)
    return 0


def _block_signals_and_oom() -> None:
    """Block signals, and be spared when memory runs out."""
    # A thread may be in the middle of our call, for about a millisecond. If its tracer dies then, the thread runs on
    # with our registers, and the program ends. Nothing helps against SIGKILL.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")


def _enter(process: Identity, surplus: int, speaking: socket.socket) -> NoReturn:
    pid = process.pid
    try:
        said, descriptors = TakeResult(pid, -1), []
        try:
            descriptors = [take_one(process)] if surplus < 0 else _close_in(process, surplus)
        except HostCannot as error:
            said = TakeResult(pid, -1, error.message, error.hint)
        except OSError as error:
            said = TakeResult(pid, -1, f"PID {pid} cannot be entered: {error.strerror or error}")
        socket.send_fds(speaking, [msgspec.json.encode(said)], descriptors)
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


def _close_in(process: Identity, surplus: int) -> list[int]:
    with ptrace.stopped(process.pid, identity=process) as thread:
        if _is_userfaultfd(thread.tid, surplus):
            thread.system_call(_NUMBERS[thread.is_compat][1], surplus, within_s=ptrace.STOPS_WITHIN_S)
    return []


def _refusal(pid: int, number: int) -> HostCannot:
    if number == errno.EMFILE:
        return HostCannot(
            f"PID {pid} has no free file descriptor (RLIMIT_NOFILE)", hint=f"prlimit --pid {pid} --nofile=N: raise it"
        )
    return HostCannot(f"userfaultfd is forbidden to PID {pid}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
