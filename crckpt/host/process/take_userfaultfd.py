"""Take a userfaultfd of another process: the process makes one, we duplicate it, and the process closes its own.

A helper enters the processes, each from its own child: `python -m crckpt.host.process.take_userfaultfd SOCKET
PID:START[:DESCRIPTOR]...`. It ends within seconds, unless a process gets no CPU time in the middle of the call. If the
helper dies, the kernel releases the process. But during the call, which takes about a millisecond, a SIGKILL of the
helper would end the process, too; the helper blocks other signals.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.proc.fd import read_target
from crckpt.host.process import run
from crckpt.host.syscalls import ptrace
from crckpt.host.syscalls.pidfd_getfd import borrow

# userfaultfd, close: x86-64 and 32-bit
_NUMBERS: Final = {False: (323, 3), True: (374, 6)}
_USER_MODE_ONLY: Final = 1
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY
_MOST: Final = 4096
_PATIENCE_S: Final = 15.0
"""For one process."""


class TakeResult(Struct, frozen=True):
    """The result for one process: our `descriptor`; or -1, the reason, and a remedy."""

    pid: int
    descriptor: int
    why: str = ""
    hint: str = ""


def take_userfaultfds(pids: Iterable[int]) -> tuple[TakeResult, ...]:
    """Take a userfaultfd of each of these processes; the caller closes them. Takes about 0.1 s for all.

    One thread of each is stopped for some milliseconds. A system call in which it waits is restarted.
    """
    return _enter_each(dict.fromkeys(pids, ""))


def close_descriptors(descriptors: Mapping[int, int]) -> tuple[TakeResult, ...]:
    """Close one descriptor in each of these processes, given by PID."""
    return _enter_each({pid: f":{descriptor}" for pid, descriptor in descriptors.items()})


def _enter_each(wanted: Mapping[int, str]) -> tuple[TakeResult, ...]:
    if not wanted:
        return ()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            # Before the helper enters it, a process may have ended, and another one have its PID.
            entered = (f"{pid}:{_start(pid)}{word}" for pid, word in wanted.items())
            words = (sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *entered)
            child = run.start(
                words, output=Path(os.devnull), keep=(theirs.fileno(),), python_path=Path(__file__).parents[3]
            )
        ours.settimeout(_PATIENCE_S)
        found: dict[int, TakeResult] = {}
        try:
            for taken in _answers(ours):
                found[taken.pid] = taken
            why = f"ended with {child.wait()}"
        except TimeoutError:
            # Do not kill it: during a call the process would end, too.
            child.abandon()
            why = f"was kept waiting for {_PATIENCE_S:g} s"
    return tuple(
        found.get(pid) or TakeResult(pid, -1, f"the helper that was to enter PID {pid} {why}") for pid in wanted
    )


def _answers(listening: socket.socket) -> Iterable[TakeResult]:
    """Receive results until every helper has ended."""
    while True:
        said, descriptors, _, _ = socket.recv_fds(listening, _MOST, 1, socket.MSG_CMSG_CLOEXEC)
        if not said:
            return
        taken = msgspec.json.decode(said, type=TakeResult)
        yield TakeResult(taken.pid, descriptors[0] if descriptors else -1, taken.why, taken.hint)


def main(words: list[str]) -> int:
    """Enter each process in turn, and send the result to the socket."""
    _block_signals_and_oom()
    with socket.socket(fileno=int(words[0])) as speaking:
        for word in words[1:]:
            pid, start, *descriptor = (int(part) for part in word.split(":"))
            child = os.fork()
            if child == 0:
                _enter(pid, start, (*descriptor, -1)[0], speaking)
            os.waitpid(child, 0)
    return 0


def _block_signals_and_oom() -> None:
    """Block signals, and be spared when memory runs out: a thread may be in the middle of our call."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")


def _start(pid: int) -> int:
    """Its start time; 1, which no process has, if it has ended."""
    process = proc.read_process(pid)
    return process.start if process is not None else 1


def _enter(pid: int, start: int, surplus: int, speaking: socket.socket) -> NoReturn:
    try:
        said, descriptors = TakeResult(pid, -1), []
        try:
            descriptors = [_make_in(pid, start)] if surplus < 0 else _close_in(pid, start, surplus)
        except HostCannot as error:
            said = TakeResult(pid, -1, error.message, error.hint)
        except OSError as error:
            said = TakeResult(pid, -1, f"PID {pid} cannot be entered: {error.strerror or error}")
        socket.send_fds(speaking, [msgspec.json.encode(said)], descriptors)
    finally:
        os._exit(0)


def _make_in(pid: int, start: int = 0) -> int:
    with ptrace.stopped(pid, start=start) as thread:
        make, close = _NUMBERS[thread.is_compat]
        theirs = thread.system_call(make, _FLAGS, within_s=ptrace.STOPS_WITHIN_S)
        if theirs < 0:
            raise _refusal(pid, -theirs)
        try:
            ours = borrow(pid, theirs)
        finally:
            # CRIU refuses a program that has one. Another thread may have put another file in its place (dup2): check
            # this right before closing.
            if _is_userfaultfd(thread.tid, theirs):
                thread.system_call(close, theirs)
    if not _is_userfaultfd(os.getpid(), ours):
        raise HostCannot(f"PID {pid}: another thread has taken the number of our descriptor there", hint="try again")
    return ours


def _is_userfaultfd(tid: int, descriptor: int) -> bool:
    """Whether a descriptor is one, in the table of this thread: it may have its own table."""
    with suppress(OSError):
        return read_target(tid, descriptor) == "anon_inode:[userfaultfd]"
    return False


def _close_in(pid: int, start: int, surplus: int) -> list[int]:
    with ptrace.stopped(pid, start=start) as thread:
        if _is_userfaultfd(thread.tid, surplus):
            thread.system_call(_NUMBERS[thread.is_compat][1], surplus, within_s=ptrace.STOPS_WITHIN_S)
    return []


def _refusal(pid: int, number: int) -> HostCannot:
    if number == errno.EMFILE:
        return HostCannot(
            f"PID {pid} has no free file descriptor (RLIMIT_NOFILE)", hint=f"prlimit --pid {pid} --nofile=N: raise it"
        )
    return HostCannot(f"userfaultfd is refused to PID {pid}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
