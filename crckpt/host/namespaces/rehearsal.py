"""Namespaces for a rehearsal: a tree runs in them as on the host, changes nothing outside, and ends with crckpt."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from crckpt.host.disk.own_files import write_private
from crckpt.host.namespaces.isolation import SeclusionPlan, SeclusionResult, result_path
from crckpt.host.namespaces.pid import started_init
from crckpt.host.process import run
from crckpt.host.process.signals import interrupts_deferred

KINDS: Final = ("pid", "mnt", "net", "ipc", "uts")


class Throwaway:
    """Namespaces from which the host cannot be changed. `init` is their PID 1 as we see it."""

    def __init__(self, init: int, secluded: SeclusionResult, child: run.Child, alive: BinaryIO) -> None:
        self.init = init
        self.secluded = secluded
        self._child = child
        self._alive = alive

    def end(self) -> int:
        """End all processes in them; return the root's exit status, or 128 plus its signal, if it had ended before."""
        with interrupts_deferred():
            self._alive.close()
            return self._child.wait()


@contextmanager
def throwaway(root: int, plan: SeclusionPlan, joining: tuple[str, ...] = ()) -> Iterator[Throwaway]:
    """Make namespaces by a plan, with an init for the process that will be `root`; end them with the block or with us.

    `joining` are words before the command that makes them. Raises HostCannot.
    """
    work = Path(plan.work)
    written, owner = work / "plan.json", work / "alive"
    write_private(written, msgspec.json.encode(plan))
    write_private(owner, b"")
    unshare = (*joining, "unshare", "--net", "--ipc", "--uts")
    with owner.open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        with started_init(unshare, root, work, owner, str(written)) as (child, init):
            secluded = msgspec.json.decode(result_path(written).read_bytes(), type=SeclusionResult)
            new = Throwaway(init, secluded, child, alive)
            try:
                yield new
            finally:
                new.end()
