"""Start a helper as the first process of a new PID namespace, also of one for a rehearsal: this ends with it."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.helper.kinds import INIT, HelperKind
from crckpt.helper.pid_namespace.init import InitAnswer
from crckpt.helper.start import StartedHelper, start_helper
from crckpt.host import proc
from crckpt.host.process.signals import interrupts_deferred

if TYPE_CHECKING:
    from crckpt.host.namespaces.isolation import SeclusionPlan

# --kill-child: the namespace ends with `unshare`, which waits for it. --propagation private: the new /proc must not
# appear on the host.
_NEW = ("--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")


REHEARSAL_KINDS: Final = ("pid", "mnt", "net", "ipc", "uts")


class PidNamespace(Struct, frozen=True):
    """A PID namespace with its own /proc. `init` is its PID 1 as we see it, `parent` our child that waits for it."""

    init: int
    parent: int


def start_as_init(
    kind: HelperKind,
    *words: str,
    keep: Sequence[int] = (),
    unshare: Sequence[str] = ("unshare",),
    order: Struct | None = None,
    own_session: bool = True,
) -> StartedHelper:
    """Start a helper as the init of a PID namespace, and wait for its first answer, which the caller receives.

    The helper's `child` is its parent, and ends with its status. `unshare` are the words that begin the command,
    `order` is the first message that it gets. Raises HostCannot.
    """
    with os.fdopen(os.memfd_create("crckpt", os.MFD_CLOEXEC), "rb") as output:
        path = Path(f"/proc/self/fd/{output.fileno()}")
        within = (*unshare, *_NEW)
        helper = start_helper(kind, *words, keep=keep, within=within, output=path, own_session=own_session)
        try:
            with suppress(HostCannot):
                if order is not None:
                    helper.send(order)
            select.select([helper], [], [])
        except BaseException:
            end_namespace(helper)
            raise
        if helper.has_ended():
            helper.end()
            said = " ".join(output.read().decode(errors="replace").split())
            raise HostCannot(f"cannot make new namespaces: {said}", hint="find what is missing: crckpt doctor")
    helper.pid = next(iter(proc.children(helper.child.pid)), helper.pid)
    return helper


def end_namespace(helper: StartedHelper) -> None:
    """End a helper that is an init, and all processes of its namespace."""
    with suppress(ProcessLookupError):
        helper.child.kill()
    helper.end()


@contextmanager
def pid_namespace(root: int, *, own_session: bool = True) -> Iterator[PidNamespace]:
    """Make a PID namespace whose init waits for the process that will be `root` in it; end it if the block fails.

    The root must be there when the block ends. Raises HostCannot.
    """
    # A tree on our terminal needs its parent, the init, in our session: otherwise the kernel does not stop it (^Z).
    helper = start_as_init(INIT, str(root), own_session=own_session)
    try:
        helper.receive(InitAnswer)
        yield PidNamespace(helper.pid, helper.child.pid)
    except BaseException:
        end_namespace(helper)
        raise
    helper.leave()


class Throwaway:
    """Namespaces from which the host cannot be changed. `init` is their PID 1 as we see it.

    `unwritable` are the mount points that could get no overlay: they are read-only or missing.
    """

    def __init__(self, helper: StartedHelper) -> None:
        self.init = helper.pid
        self.unwritable = helper.receive(InitAnswer).unwritable
        self._helper = helper

    def end(self) -> int:
        """End all processes in them; return the root's exit status, or 128 plus its signal, if it had ended before."""
        with interrupts_deferred():
            return self._helper.end()


@contextmanager
def throwaway(root: int, plan: SeclusionPlan, joining: tuple[str, ...] = ()) -> Iterator[Throwaway]:
    """Make namespaces by a plan, with an init for the process that will be `root`; end them with the block or with us.

    A tree runs in them as on the host, and changes nothing outside. `joining` are words before the command that makes
    them. Raises HostCannot.
    """
    unshare = (*joining, "unshare", "--net", "--ipc", "--uts")
    helper = start_as_init(INIT, str(root), "rehearsal", unshare=unshare, order=plan)
    try:
        new = Throwaway(helper)
    except BaseException:
        end_namespace(helper)
        raise
    try:
        yield new
    finally:
        new.end()
