"""Wait for the end of a tree that CRIU kills after a move's commit: CRIU does not wait for it."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import Final

from crckpt.errors import DumpFailed
from crckpt.host import proc

# Seconds: a killed process may have to free much memory first.
_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.005
# A tree may have more processes than crckpt may have descriptors.
_MOST_PIDFDS: Final = 256


class TreeEnd:
    """The end of all processes of a tree that is frozen now."""

    def __init__(self, tree: proc.Tree) -> None:
        """Open pidfds, of the first processes: they report the end at once. Raises OSError."""
        self._others = tree.processes[_MOST_PIDFDS:]
        self._pidfds: list[int] = []
        for process in tree.processes[:_MOST_PIDFDS]:
            with suppress(ProcessLookupError):  # a zombie that its frozen parent has not reaped has a pidfd, too
                self._pidfds.append(os.pidfd_open(process.pid))

    def wait(self) -> None:
        """Wait until every process has ended, reaped or not. Raises DumpFailed if one does not end."""
        until = time.monotonic() + _WITHIN_S
        for descriptor in self._pidfds:
            # Not select(2): it takes no descriptor above 1023.
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(until - time.monotonic(), 0) * 1000):
                raise _make_error()
            os.close(descriptor)
        for process in self._others:
            while process.identity.find() is not None:
                if time.monotonic() >= until:
                    raise _make_error()
                time.sleep(_LOOK_S)


def _make_error() -> DumpFailed:
    return DumpFailed("a process of the tree does not end", hint="find it: ps -o pid,stat,wchan -e")
