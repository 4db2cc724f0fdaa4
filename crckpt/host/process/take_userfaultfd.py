"""Take a userfaultfd of another process: the process makes one, we duplicate it, and the process closes its own.

A helper process enters it (`crckpt.host.process.userfaultfd_taker`).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.host import proc
from crckpt.host.process import run

_HELPER: Final = "crckpt.host.process.userfaultfd_taker"
_MOST: Final = 4096
# For one process.
_PATIENCE_S: Final = 15.0


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
    # SEQPACKET keeps the messages apart, each with its descriptor, and reports the end once no helper has the socket.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            # Before the helper enters it, a process may have ended, and another one have its PID.
            entered = (f"{_name(pid)}{word}" for pid, word in wanted.items())
            # -P: no module of the current directory may stand in for one of Python's.
            words = (sys.executable, "-P", "-m", _HELPER, str(theirs.fileno()), *entered)
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
            why = f"got no answer for {_PATIENCE_S:g} s"
    return tuple(found.get(pid) or TakeResult(pid, -1, f"the helper process for PID {pid} {why}") for pid in wanted)


def _answers(listening: socket.socket) -> Iterable[TakeResult]:
    """Receive results until every helper has ended."""
    while True:
        said, descriptors, _, _ = socket.recv_fds(listening, _MOST, 1, socket.MSG_CMSG_CLOEXEC)
        if not said:
            return
        taken = msgspec.json.decode(said, type=TakeResult)
        yield TakeResult(taken.pid, descriptors[0] if descriptors else -1, taken.why, taken.hint)


def _name(pid: int) -> str:
    """Its name; that of no process if it has ended."""
    return found.name if (found := proc.identify(pid)) is not None else f"{pid}-1"
