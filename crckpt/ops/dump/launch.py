"""Start a dump's CRIU early: it is slow to start, and waits before it freezes anything.

`crckpt.ops.dump.dump` imports the other steps, and examines the tree, while CRIU starts. So this module, and what it
imports, must stay quick to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import CriuRun
from crckpt.criu.hold import GaveUp, Hold, Step, can_hold, holds_at
from crckpt.errors import CrckptError, TargetNotRunning
from crckpt.helper.kinds import KEEPER, record_path
from crckpt.host import proc
from crckpt.host.disk.files import remove_tree
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.process.signals import interrupts_deferred
from crckpt.host.target import pinned
from crckpt.model import DumpOptions, JobName
from crckpt.ops.context import Context, require_staging
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.last_checkpoint import LastCheckpoint, describe_place, read_last_checkpoint
from crckpt.store import STAGING, Repository, staged
from crckpt.store.layout import NAME
from crckpt.tracking.preload.library import dump_words


class Workspace(Struct, frozen=True):
    """The directories of a dump. `work` is a transaction of the locked store; `staging` holds images until they are
    stored.
    """

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
    def stats(self) -> Path:
        """CRIU's statistics, which it writes last."""
        return self.work / "stats-dump"


@contextmanager
def opened_workspace(context: Context) -> Iterator[Workspace]:
    """Make a workspace, and remove it after the block. Raises UsageError, StoreUnusable, StoreLocked, OSError."""
    require_staging(context)
    repository = context.repository(create=True)
    with ExitStack() as stack:
        stack.enter_context(repository.shared())
        work = staging = stack.enter_context(repository.transaction())
        if context.staging is not None:
            staging = stack.enter_context(staged(context.staging))
            # If crckpt is killed, `gc` finds what lies outside the store by this link.
            (work / STAGING).symlink_to(staging)
        workspace = Workspace(repository, work, staging)
        workspace.images.mkdir(mode=0o700)
        yield workspace


class StartedCriu(Struct, frozen=True):
    """A CRIU that runs `command`. It waits at `first` before the freeze, and at `last` while the tree is frozen.

    Without such a hold it does not wait.
    """

    command: tuple[str, ...]
    paths: Paths
    run: CriuRun
    first: Hold | None
    last: Hold | None

    def release(self) -> None:
        """Let it freeze the tree. If it gave up waiting, its result says so. After an OSError it freezes nothing."""
        if self.first is not None:
            with suppress(GaveUp):
                self.first.commit()

    def give_up(self) -> None:
        """Abort at each hold, and wait until CRIU has undone its work and ended. May be called again."""
        for hold in (self.first, self.last):
            if hold is not None:
                hold.release()
        self.run.wait()


@contextmanager
def started_criu(
    command: Callable[[Paths], tuple[str, ...]],
    workspace: Workspace,
    root: int,
    *,
    waits: bool = False,
    stop: bool = False,
) -> Iterator[StartedCriu]:
    """Start CRIU for the tree below `root`. It has ended after the block.

    If it `waits`, it freezes nothing until it is released. It holds the frozen tree at its end, unless no hold is
    possible here and the tree is not to `stop`. Raises HostCannot.
    """
    has_end = stop or can_hold(workspace.work)
    steps: tuple[Step, ...] = (*(("pre-dump",) if waits else ()), *(("post-dump",) if has_end else ()))
    holds: dict[Step, Hold] = {}
    with ExitStack() as stack:
        if steps:
            # There are two names, because the CRIU that waited in vain may still run when the next one starts.
            directory = workspace.work / ("waiting" if waits else "hold")
            holds = dict(zip(steps, stack.enter_context(holds_at(directory, *steps)), strict=True))
            # The next CRIU in this workspace makes it again.
            stack.callback(remove_tree, directory, "hold")
        script = next((hold.script for hold in holds.values()), None)
        paths = Paths(workspace.images, workspace.work, script)
        words = command(paths)
        # Interrupted in between, crckpt would leave a CRIU that nobody ends.
        with interrupts_deferred():
            run = CriuRun(words, workspace.log, holds=tuple(holds.values()), tree=root)
            started = StartedCriu(words, paths, run, holds.get("pre-dump"), holds.get("post-dump"))
            stack.callback(started.give_up)
        yield started


@contextmanager
def criu_started_early(
    request: DumpRequest, root: proc.Process, context: Context, workspace: Workspace
) -> Iterator[StartedCriu | None]:
    """Start a CRIU that waits, with the options that most trees need. None if this tree clearly needs others.

    Raises HostCannot.
    """
    # A look at the tree would take as long as CRIU's start. A wrong guess costs a CRIU that was started in vain.
    criu, ours = context.criu(), proc.read_process(os.getpid())
    own, its = dict(ours.namespaces) if ours is not None else {}, dict(root.namespaces)
    apart = {kind for kind in own if its.get(kind, own[kind]) != own[kind]}
    # Such a CRIU is started in another way: it enters namespaces, or gets the environment of a tracker.
    is_tracked = request.wants_tracker or record_path(KEEPER, root.identity).exists()
    if apart & {"pid", "mnt"} or is_tracked or not can_hold(workspace.work):
        yield None
        return
    # CRIU always locks a network namespace of the tree's own, with iptables unless it is told otherwise.
    lock: Literal["nftables", "skip"] = "nftables" if criu.locks_by_nftables else "skip"
    options = DumpOptions(
        tcp=request.tcp,
        shell_job=root.sid != root.pid,
        network_lock=lock if "net" in apart else None,
        skip_in_flight=request.skip_in_flight,
    )
    build, library = partial(dump_command, criu.path, root.pid, options=options), dump_words(criu.path)
    with started_criu(
        lambda paths: (*library, *build(paths, leave_running=not request.stop)),
        workspace,
        root.pid,
        waits=True,
        stop=request.stop,
    ) as waiting:
        yield waiting


@contextmanager
def pinned_target(request: DumpRequest, context: Context) -> Iterator[tuple[DumpRequest, HeldProcess]]:
    """Pin the root that `request.target` names, perhaps by a job of the store, while the block runs.

    Yield the request, with the PID and the job in the place of a job, and the root. Raises what `pinned` raises;
    TargetNotRunning names the place where the job runs if it runs elsewhere.
    """
    kind, colon, name = request.target.partition(":")
    last = None if colon or kind.isdecimal() else _read_last_checkpoint(context, kind)
    if last is not None:
        job = last.checkpoint.job
        root = last.find_running_root()
        if root is None:
            raise TargetNotRunning(
                f"crckpt knows no program of the job {job} that runs here",
                hint=f"restore it: crckpt restore {job}; if it was started anew, name its PID: crckpt dump PID {job}",
            )
        request = replace(request, target=str(root.pid), job=request.job or job)
    try:
        with pinned(request.target) as process:
            yield request, process
    except TargetNotRunning as error:
        last = _read_last_checkpoint(context, request.job or (name.removesuffix(".service") if kind == "unit" else ""))
        root = None if last is None else last.find_running_root()
        if last is None or root is None:
            raise
        job = last.checkpoint.job
        raise error.reword(hint=f"{job} runs {describe_place(root)}: crckpt dump {job}") from None


def _read_last_checkpoint(context: Context, job: str) -> LastCheckpoint | None:
    """Read the last checkpoint of a job; None if there is no such job."""
    with suppress(CrckptError, OSError):
        return read_last_checkpoint(context.repository(), JobName(job)) if NAME.fullmatch(job) else None
    return None
