"""End a dump whose CRIU makes no progress: first what it awaits, then CRIU itself. The kernel then frees the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crckpt.host.disk import fuse
from crckpt.host.process.orphans import end_with_descendants
from crckpt.host.process.progress import QUIET_S, dump_signs, waits_for_a_program
from crckpt.host.steps import limit

PATIENCE_S: Final = limit("CRCKPT_PATIENCE_S", 10)
"""Seconds without progress after an interruption or a failure, when CRIU is to end."""
_KILLED_WITHIN_S: Final = 3
_ABORTS: Final = 3


class DumpLimit:
    """The limit of a dump's CRIU, process `pid`, which dumps the tree below `root`.

    `waited_for` are mount points of FUSE file systems that did not answer and were disconnected. `is_killed`: CRIU was
    killed. `is_lost`: it cannot even be killed.
    """

    def __init__(self, pid: int, root: int, log: Path) -> None:
        self.waited_for: tuple[str, ...] = ()
        self.is_killed = self.is_lost = False
        self._pid = pid
        self._root = root
        self._log = log
        self._quiet = self._aborts = 0
        self._signs: object = None

    def look(self, *, is_to_end: bool) -> None:
        """Act if there is no progress. Call it every second; `is_to_end` after an interruption or a failure."""
        criu, tree = fuse.tree_pids(self._pid), fuse.tree_pids(self._root)
        signs = dump_signs(criu, tree, self._log)
        # Once CRIU is killed the tree runs on, and its signs do not count.
        self._quiet = self._quiet + 1 if self.is_killed or (signs is not None and signs == self._signs) else 0
        self._signs = signs
        if self._quiet <= (_KILLED_WITHIN_S if self.is_killed else PATIENCE_S if is_to_end else QUIET_S):
            return
        self._quiet = 0
        if self._aborts < _ABORTS and waits_for_a_program((*criu, *tree)):
            self._aborts += 1
            # Without its connection the wait ends with an error, and CRIU undoes its work: better than to kill it.
            if found := fuse.abort_connections(tree):
                self.waited_for = tuple(dict.fromkeys((*self.waited_for, *found)))
                return
        if self.is_killed:
            # It waits in the kernel, where not even SIGKILL reaches it.
            self.is_lost = True
            return
        self.is_killed = True
        end_with_descendants(self._pid)
