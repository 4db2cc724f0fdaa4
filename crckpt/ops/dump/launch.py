"""Start a dump's CRIU before the tree is looked at: it takes long to start, and waits before it freezes anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import CriuRun
from crckpt.criu.find import Criu
from crckpt.criu.hold import GaveUp, Hold, Step, can_hold, holds_at
from crckpt.host import proc
from crckpt.host.disk.files import remove_tree
from crckpt.host.process.signals import interrupts_put_off
from crckpt.model import DumpOptions
from crckpt.ops.context import Context, need_staging
from crckpt.ops.dump.request import Request
from crckpt.store import STAGING, Repository, staged
from crckpt.tracking.keeper.places import place_of_keeper
from crckpt.tracking.preload.library import untracked_words


class Place(Struct, frozen=True):
    """Where a dump works: a transaction of the store, which is locked meanwhile, and where images lie until stored."""

    repository: Repository
    work: Path
    staging: Path

    @property
    def images(self) -> Path:
        """The directory of CRIU's images."""
        return self.staging / "images"

    @property
    def log(self) -> Path:
        """CRIU's log."""
        return self.work / "dump.log"

    @property
    def paths(self) -> Paths:
        """The same for a CRIU without a hold."""
        return Paths(self.images, self.work)


@contextmanager
def placed(context: Context) -> Iterator[Place]:
    """A place, gone when the block ends. Raises UsageError, StoreUnusable, StoreLocked, OSError."""
    need_staging(context)
    repository = context.repository(create=True)
    with ExitStack() as stack:
        stack.enter_context(repository.shared())
        work = staging = stack.enter_context(repository.transaction()).path
        if context.staging is not None:
            staging = stack.enter_context(staged(context.staging))
            (work / STAGING).symlink_to(staging)
        place = Place(repository, work, staging)
        place.images.mkdir(mode=0o700)
        yield place


class Started(Struct, frozen=True):
    """A CRIU, and its `command`. It waits at `first` before it freezes anything, and at `last` before it ends the tree.

    Where there is no such hold it does not wait.
    """

    command: tuple[str, ...]
    paths: Paths
    criu: CriuRun
    first: Hold | None
    last: Hold | None

    def go_on(self) -> None:
        """Let it freeze the tree. Raises OSError: then it does not. If it gave up waiting, its end says so."""
        if self.first is not None:
            with suppress(GaveUp):
                self.first.commit()

    def check(self) -> None:
        """Raise GaveUp if it no longer waits at `last`, and so does not end the tree."""
        if self.last is not None:
            self.last.check()

    def give_up(self) -> None:
        """Let it end, if it has not: at a hold it undoes what it did."""
        for hold in (self.first, self.last):
            if hold is not None:
                hold.release()
        self.criu.wait()


@contextmanager
def started(
    command: Callable[[Paths], tuple[str, ...]], place: Place, root: int, *, waits: bool = False, stop: bool = False
) -> Iterator[Started]:
    """Start CRIU for the tree below `root`, with a hold at the end, while the tree is frozen.

    It has ended when the block does. Where no hold is possible there is none, unless CRIU is to `stop` the tree.

    If it `waits` it freezes nothing before it is told to go on. Raises HostCannot.
    """
    has_end = stop or can_hold(place.work)
    steps: tuple[Step, ...] = (*(("pre-dump",) if waits else ()), *(("post-dump",) if has_end else ()))
    holds: dict[Step, Hold] = {}
    with ExitStack() as stack:
        if steps:
            directory = place.work / ("waiting" if waits else "hold")
            holds = dict(zip(steps, stack.enter_context(holds_at(directory, *steps)), strict=True))
            # Another may be started in this place.
            stack.callback(remove_tree, directory, "hold")
        script = next((hold.script for hold in holds.values()), None)
        paths = Paths(place.images, place.work, script)
        words = command(paths)
        with interrupts_put_off():
            criu = CriuRun(words, place.log, holds=tuple(holds.values()), tree=root)
            begun = Started(words, paths, criu, holds.get("pre-dump"), holds.get("post-dump"))
            stack.callback(begun.give_up)
        yield begun


@contextmanager
def begun(request: Request, root: proc.Process, context: Context, place: Place) -> Iterator[Started | None]:
    """A CRIU that waits, told what most trees need. None where this tree needs something else, as far as is known.

    Raises HostCannot.
    """
    criu = context.criu()
    options = _likely(request, root, criu)
    if options is None or not can_hold(place.work):
        yield None
        return

    def command(paths: Paths) -> tuple[str, ...]:
        words = dump_command(criu.path, root.pid, paths, options, leave_running=not request.stop)
        return (*untracked_words(criu.path), *words)

    with started(command, place, root.pid, waits=True, stop=request.stop) as waiting:
        yield waiting


def _likely(request: Request, root: proc.Process, criu: Criu) -> DumpOptions | None:
    """What the plan will be if nothing odd is found. Another costs no more than a CRIU that was started in vain."""
    ours = proc.read_process(os.getpid())
    own, its = dict(ours.namespaces) if ours is not None else {}, dict(root.namespaces)
    apart = {kind for kind in own if its.get(kind, own[kind]) != own[kind]}
    if apart & {"pid", "mnt"} or request.wants_tracker or place_of_keeper(root).exists():
        return None
    lock: Literal["nftables", "skip"] = "nftables" if criu.locks_by_nftables else "skip"
    return DumpOptions(
        tcp=request.tcp,
        shell_job=root.sid != root.pid,
        network_lock=lock if "net" in apart else None,
        skip_in_flight=request.skip_in_flight,
    )
