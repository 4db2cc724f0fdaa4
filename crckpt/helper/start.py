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
from typing import Final

from crckpt.errors import HostCannot
from crckpt.helper.channel import Channel
from crckpt.helper.kinds import HelperKind
from crckpt.host.process import run

_MOST_TRIES: Final = 100
_NOWHERE: Final = Path(os.devnull)


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
    kind: HelperKind,
    *words: str,
    keep: Sequence[int] = (),
    taken: Collection[int] = (),
    command: Sequence[str] = (),
    within: Sequence[str] = (),
    output: Path = _NOWHERE,
    own_session: bool = True,
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
            keeps = (number, *keep)
            try:
                # Closed here once the helper has it: so its end is the end of the channel.
                with theirs:
                    child = run.start(argv, output=output, own_session=own_session, keep=keeps, python_path=package)
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
