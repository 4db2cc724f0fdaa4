"""Wait for the end of a tree that CRIU kills after a move's commit: CRIU does not wait for it."""

from __future__ import annotations

import time
from typing import Final

from crckpt.errors import DumpFailed
from crckpt.host import proc
from crckpt.host.process.pidfd import HeldProcess

# Seconds: a killed process may have to free much memory first.
_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.005
# A tree may have more processes than crckpt may have descriptors.
_MOST_PIDFDS: Final = 256


class TreeEnd:
    """The end of all processes of a tree that is frozen now."""

    def __init__(self, tree: proc.Tree) -> None:
        """Open pidfds, of the first processes: they report the end at once."""
        self._others = tree.processes[_MOST_PIDFDS:]
        # A zombie that its frozen parent has not reaped has a pidfd, too.
        self._held = [HeldProcess(process.pid) for process in tree.processes[:_MOST_PIDFDS]]

    def wait(self) -> None:
        """Wait until every process has ended, reaped or not. Raises DumpFailed if one does not end."""
        until = time.monotonic() + _WITHIN_S
        for process in self._held:
            if not process.ends_within(until - time.monotonic()):
                raise _make_error()
            process.close()
        for other in self._others:
            while other.identity.find() is not None:
                if time.monotonic() >= until:
                    raise _make_error()
                time.sleep(_LOOK_S)


def _make_error() -> DumpFailed:
    return DumpFailed("a process of the tree does not end", hint="find it: ps -o pid,stat,wchan -e")
