"""Start a helper, and connect to it.

It runs in a session of its own, in the directory /, with the output and error of nobody, and inherits nothing but its
channel, whose number is its first argument, and what it is given: what ends the command does not end it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.helper.channel import Channel, HelperEnded, HelperSilent
from crckpt.helper.kinds import HelperKind
from crckpt.host.process import run

_MOST_TRIES: Final = 100
_NOWHERE: Final = Path(os.devnull)
_Answer = TypeVar("_Answer")


class StartedHelper(Channel):
    """Our end of the channel to a helper that we started. `child` is its process."""

    def __init__(self, kind: HelperKind, connection: socket.socket, child: run.Child) -> None:
        super().__init__(kind, connection, child.pid)
        self.child = child

    def leave(self) -> None:
        """Close the channel; the helper goes on, and is never waited for."""
        self.close()
        self.child.abandon()

    def end(self) -> int:
        """Close the channel, which ends a helper that has nothing left to do, and return its exit status."""
        self.close()
        return self.child.wait()


def start_helper(
    kind: HelperKind, *words: str, keep: Sequence[int] = (), taken: Collection[int] = (), command: Sequence[str] = ()
) -> StartedHelper:
    """Start a helper with these words. It inherits `keep`, and its PID is none of `taken`. Raises HostCannot.

    `command` is what runs it, if not Python its module; `within` are words before that.
    """
    # -P: Python takes no module from the current directory, which may be another user's.
    command = (*within, *(command or (sys.executable, "-P", "-m", kind.module)))
    unusable: list[StartedHelper] = []
    try:
        for _ in range(_MOST_TRIES):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            number = theirs.fileno()
            argv, package = (*command, str(number), *words), Path(__file__).parents[2]
            try:
                # Closed here once the helper has it: so its end is the end of the channel.
                with theirs:
                    child = run.start(argv, output=Path(os.devnull), keep=(number, *keep), python_path=package)
            except BaseException:
                ours.close()
                raise
            helper = StartedHelper(kind, ours, child)
            if helper.pid not in taken:
                return helper
            # Until there is a good one, the others keep their PIDs.
            unusable.append(helper)
    finally:
        for each in unusable:
            each.end()
    raise HostCannot(f"no free PID was found for {kind.title}", hint="try again")


def carry_out(
    kind: HelperKind, orders: Struct, answer: type[_Answer], count: int, patience_s: float
) -> tuple[list[tuple[_Answer, list[int]]], str]:
    """Let a helper carry out `orders`; return its answers with their descriptors, and why there are fewer than `count`.

    It is given up if no answer comes for `patience_s`, and never killed: during a call in another process that would
    kill the process, too.
    """
    helper = start_helper(kind)
    found: list[tuple[_Answer, list[int]]] = []
    try:
        helper.send(orders)
        while len(found) < count:
            found.append(helper.receive_descriptors(answer, patience_s))
        helper.close()
        is_over = helper.child.ends_within(patience_s)
    except HelperEnded:
        is_over = True
    except HelperSilent:
        is_over = False
    if not is_over:
        helper.leave()
        return found, f"got no answer for {patience_s:g} s"
    return found, f"ended with status {helper.end()}"
