"""Guard a tree whose memory is being filled: it must not run on with pages of zeros.

If the last descriptor of a userfaultfd is closed, the kernel supplies zeros for all pages that are still missing. So
two processes hold these descriptors, in one table: the one that fills, and its parent, which does nothing but wait. If
the first one dies, the parent ends the tree, and only then itself. If both are killed, the tree waits, as each restored
process keeps its own userfaultfd open (`crckpt.helper.calls.pinned_userfaultfd`), and the crckpt that finds the tree
ends it: `end_unfilled`. Only children that were forked meanwhile find zeros then.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from typing import Final

import msgspec

from crckpt.host.proc import Identity
from crckpt.host.process.signals import send_signal
from crckpt.host.syscalls.own_process import fork_with_same_descriptors
from crckpt.ops.lazy.family import Family
from crckpt.ops.lazy.marks import is_unfilled, wait_until_released

_SIZE: Final = 4 << 20
_POLL_S: Final = 0.01


class GuardedTree:
    """The processes to end, which both processes see."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)  # shared

    def write(self, family: Family) -> None:
        """Name the processes. Raises ValueError if they are too many."""
        content = msgspec.json.encode(family)
        self._memory[: len(content) + 1] = content + b"\n"

    def read(self) -> Family:
        """Return the processes."""
        line = self._memory.readline()
        self._memory.seek(0)
        return msgspec.json.decode(line, type=Family) if line.strip(b"\0") else Family()


def fork_guarded(tree: GuardedTree) -> None:
    """Return in a child. Its parent waits for the child's end; if that is no success, it ends `tree`. Then it exits."""
    child = fork_with_same_descriptors()
    if child == 0:
        return
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        if status != 0:
            _end(tree.read())
    finally:
        os._exit(0 if status == 0 else 1)


def end_unfilled(root: Identity) -> None:
    """Wait while a helper fills the memory of this tree. End the tree if helper and guard were killed before that."""
    wait_until_released(root)
    if is_unfilled(root):
        _end(Family.of([root]))


def _end(family: Family) -> None:
    """End the processes, and what they have forked meanwhile; return when all are gone."""
    while found := set(family.find_living()):
        for process in found:
            send_signal(process, signal.SIGKILL)
        time.sleep(_POLL_S)
