"""Namespaces for a rehearsal: a tree runs in them as on the host, changes nothing outside, and ends with crckpt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from crckpt.helper.kinds import INIT
from crckpt.helper.pid_namespace.client import end_namespace, start_as_init
from crckpt.helper.pid_namespace.init import InitAnswer
from crckpt.helper.start import StartedHelper
from crckpt.host.namespaces.isolation import SeclusionPlan
from crckpt.host.process.signals import interrupts_deferred

KINDS: Final = ("pid", "mnt", "net", "ipc", "uts")


class Throwaway:
    """Namespaces from which the host cannot be changed. `init` is their PID 1 as we see it.

    `unwritable` are the mount points that could get no overlay: they are read-only or missing.
    """

    def __init__(self, helper: StartedHelper, unwritable: tuple[str, ...]) -> None:
        self.init = helper.pid
        self.unwritable = unwritable
        self._helper = helper

    def end(self) -> int:
        """End all processes in them; return the root's exit status, or 128 plus its signal, if it had ended before."""
        with interrupts_deferred():
            return self._helper.end()


@contextmanager
def throwaway(root: int, plan: SeclusionPlan, joining: tuple[str, ...] = ()) -> Iterator[Throwaway]:
    """Make namespaces by a plan, with an init for the process that will be `root`; end them with the block or with us.

    `joining` are words before the command that makes them. Raises HostCannot.
    """
    unshare = (*joining, "unshare", "--net", "--ipc", "--uts")
    helper = start_as_init(INIT, str(root), "rehearsal", unshare=unshare, order=plan)
    try:
        new = Throwaway(helper, helper.receive(InitAnswer).unwritable)
    except BaseException:
        end_namespace(helper)
        raise
    try:
        yield new
    finally:
        new.end()
