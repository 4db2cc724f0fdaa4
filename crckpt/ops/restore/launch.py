"""Start a CRIU that restores, in a private directory, before its images are read: CRIU starts slowly."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.criu.command import Paths
from crckpt.criu.engine import CriuRun
from crckpt.criu.hold import Hold, holds_at
from crckpt.criu.streamer import Streamer, serving
from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.helper.pid_namespace.client import PidNamespace, pid_namespace
from crckpt.host import proc
from crckpt.host.disk.own_files import make_runtime_directory, runtime_directory
from crckpt.host.process import cgroups, run
from crckpt.host.process.signals import interrupts_deferred
from crckpt.images.tree import ImageTree
from crckpt.ops.context import Context, nsenter_words, require_staging
from crckpt.ops.restore.attempt import HOLDERS, RestoreAttempt
from crckpt.ops.restore.images import write_images
from crckpt.ops.restore.last_calls import LastCalls
from crckpt.ops.restore.outside_ends import OutsideEnds, inherited_ends
from crckpt.preflight.attribute_record import GroupMoves
from crckpt.store import Repository, staged
from crckpt.store.transaction import RESTORE_LOG, record_builder

# The library maps it before we know how much is needed. It stays sparse.
_SIZE: Final = 64 << 20
_WORD: Final = 4
_END: Final = bytes(_WORD)


class LaunchedCriu(Struct, frozen=True):
    """A CRIU that waits for its images, or has them as files. `new` is the tree's new PID namespace, if it gets one.

    `copiers` are as `inherited_ends` gives them.
    """

    run: CriuRun
    streamer: Streamer
    hold: Hold
    new: PidNamespace | None
    command: tuple[str, ...]
    holders: Path
    last_calls: LastCalls
    copiers: tuple[int, ...]

    @property
    def init(self) -> int | None:
        """The init of the new PID namespace, as we see it; None if the tree is in ours."""
        return self.new.init if self.new else None

    def find_init(self, tree: ImageTree) -> int | None:
        """In the hold: find the init of the tree's PID namespace, as we see it; None if the tree is in ours.

        Raises RestoreFailed.
        """
        if not tree.is_apart("pid"):
            return self.init
        # CRIU made it, in ours or in the new one. Its first process descends from us, as CRIU does.
        ours = proc.read_process(os.getpid())
        for process in proc.read_tree(ours).processes if ours is not None else ():
            if process.ns_pids[-1] == tree.root.pid and process.pid not in (self.init, os.getpid()):
                return process.pid
        raise RestoreFailed("crckpt does not find the PID namespace of the restored tree", state=NOTHING_LEFT)

    def give_up(self) -> None:
        """Let CRIU end if it has not: without images it does nothing, and from the hold it undoes what it did."""
        self.streamer.refuse()
        self.hold.release()
        self.run.wait()


@contextmanager
def opened_work_directory(context: Context, repository: Repository) -> Iterator[Path]:
    """Make the directory, and remove it after the block. Raises UsageError if `--staging` is no safe directory."""
    is_writable = not repository.backend.find_write_refusal()
    with repository.transaction() if is_writable else staged(find_work_place(context, repository)) as path:
        yield path


def find_work_place(context: Context, repository: Repository) -> Path:
    """The directory in which the private one is made. Raises as `opened_work_directory`."""
    if not repository.backend.find_write_refusal():
        return repository.backend.scratch
    if context.staging is not None:
        require_staging(context)
        return context.staging
    place = runtime_directory() / "restoring"
    # It makes the directories above the path that it gets.
    make_runtime_directory(place / "any")
    return place


@contextmanager
def launched_criu(
    attempt: RestoreAttempt, outside: OutsideEnds, tree: ImageTree | None, moves: GroupMoves = ()
) -> Iterator[LaunchedCriu]:
    """Start CRIU. If the block ends before CRIU was followed, CRIU ends too.

    `tree` is None if it has not been read yet: then CRIU gets its images as streams, and no new PID namespace.
    """
    request = attempt.request
    with ExitStack() as stack:
        work = stack.enter_context(opened_work_directory(attempt.context, attempt.repository))
        # First, so that it is closed last: children of a CRIU that was killed still listen.
        streamer = stack.enter_context(serving(work))
        images = streamer.directory
        as_files = tree is not None and tree.is_read_by_position
        # A stream can only be read from its start to its end.
        if tree is not None and as_files:
            edits, progress = attempt.find_edits(tree), attempt.context.progress
            images = write_images(attempt.repository, attempt.checkpoint, work, progress, edits)
        (hold,) = stack.enter_context(holds_at(work / "hold", "post-restore"))
        holder, new = outside.holder, None
        if holder is not None:
            new = holder.namespace
        elif request.new_pid_namespace and tree is not None:
            # A root that leads a session gets what is typed from us: the init must not get it, too.
            own_session = outside.terminal is None or tree.root.sid == tree.root.pid
            new = stack.enter_context(pid_namespace(tree.root.pid, own_session=own_session))
        ends, copiers = stack.enter_context(inherited_ends(outside, None if request.detach else request.output))
        command = (
            *(nsenter_words(new.init, ("pid", "mnt")) if new and holder is None else ()),
            # A tree without a session leader gets CRIU's session, with a number in its PID namespace for the next dump.
            *(("setsid",) if new and outside.terminal is None and holder is None else ()),
            *attempt.command(Paths(images, work, hold.script), tuple(ends), stream=not as_files),
        )
        holders = work / HOLDERS
        create_holders(holders)
        last_calls = LastCalls(work)
        last_calls.create()
        if tree is not None:
            write_holders(holders, tree, moves)
            last_calls.write(tree)
        # Interrupted in between, crckpt would leave a CRIU that nobody ends.
        with interrupts_deferred():
            criu = CriuRun(
                command,
                work / RESTORE_LOG,
                holds=(hold,),
                terminal=outside.terminal,
                keep=(streamer.descriptor, *ends.values()),
                limited=True,
                start=run.start if holder is None else holder.start,
            )
            launched = LaunchedCriu(criu, streamer, hold, new, command, holders, last_calls, tuple(copiers))
            stack.callback(launched.give_up)
            if new is None:
                record_builder(work, criu.pid)
        yield launched


def create_holders(path: Path) -> None:
    """Create the file by which CRIU's preload library knows with whose rights it makes things; it says nothing yet."""
    path.touch(0o600, exist_ok=False)
    os.truncate(path, _SIZE)


def write_holders(path: Path, tree: ImageTree, moves: GroupMoves = ()) -> None:
    """Write user and groups of all processes that are not root's, before CRIU makes any; and their `moves`.

    CRIU's preload library makes with these rights, and in these control groups, what a process had (holders.c). Raises
    RestoreFailed if there is no room for all.
    """
    content = bytearray()
    for process in tree.processes:
        rights = process.core.rights
        if rights is not None and rights.uids[3]:
            numbers = (process.pid, rights.uids[3], rights.gids[3], len(rights.groups), *sorted(rights.groups))
            content += struct.pack(f"={len(numbers)}I", *numbers)
    content += _END
    for pid, group in moves:
        directory = cgroups.group_directory(group.controllers, group.path)
        # Rules for the opening of devices are not for what was opened before: such a group is entered in the hold.
        if directory is not None and group.controllers != "devices":
            name = os.fsencode(directory / "cgroup.procs")
            words = len(name) // _WORD + 1
            content += struct.pack(f"=II{words * _WORD}s", pid, words, name)
    if len(content) > _SIZE - len(_END):
        # A process without a record would get its things from root.
        why = "its processes have too many groups"
        raise RestoreFailed(f"crckpt cannot make files and sockets as the tree's users: {why}", state=NOTHING_LEFT)
    with path.open("r+b") as file:
        file.write(content)
