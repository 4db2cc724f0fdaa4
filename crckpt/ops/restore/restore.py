"""Bring a checkpoint back to life, in the foreground (we are its parent) or detached."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause
from crckpt.criu.command import Paths, restore_command
from crckpt.criu.engine import CriuRun
from crckpt.criu.find import Criu
from crckpt.criu.hold import Hold, holds_at
from crckpt.criu.streamer import Streamer, serving
from crckpt.errors import (
    CrckptError,
    HostCannot,
    IntegrityError,
    Interrupted,
    PreflightRefused,
    RestoreFailed,
    UsageError,
)
from crckpt.host import proc
from crckpt.host.disk.rewind import put_back_on_failure
from crckpt.host.namespaces import network_locks
from crckpt.host.namespaces import pid as namespace
from crckpt.host.observe.pipes import filled_pipe
from crckpt.host.process import orphans as leftovers
from crckpt.host.process.job_control import wait_on_terminal
from crckpt.host.process.signals import interrupts_let_in, interrupts_put_off, interrupts_too_late, pass_signals_on
from crckpt.images.core import ZOMBIE
from crckpt.images.pipes import PipeContent
from crckpt.images.tree import ImageTree
from crckpt.ops.context import Context, entered, need_root
from crckpt.ops.failures import as_ours, explained, limited_waits_of_restore, refused
from crckpt.ops.inspect.images import Streamed, laid_out, orphaned, pipe_contents, tree_of
from crckpt.ops.restore.attributes import PutBack, prepare
from crckpt.ops.restore.open_files import Known, check
from crckpt.ops.restore.survey import survey
from crckpt.preflight.attribute_record import read_attribute_record
from crckpt.preflight.restore.judge import UNCONDITIONAL, Verdict, judge_restore
from crckpt.preflight.restore.pipes import OutsidePipe
from crckpt.preflight.restore.planned import Grown, PlannedRestore
from crckpt.preflight.restore.tasks import needed_ids
from crckpt.store import Checkpoint, Repository, reader
from crckpt.store.read.details import read_details
from crckpt.tracking.preload.library import restore_words

if TYPE_CHECKING:
    from crckpt.store.format.index import StoredFile


class Request(Struct, frozen=True):
    """What the user asked for. `terminal` is the descriptor of the terminal we run on, if any.

    `output` is our descriptor for what the tree writes into pipes whose other end is not in it (in the foreground).
    Without `preflight` CRIU tries what is known to fail. With `allow_weaker` the tree may come back less protected than
    it was.
    """

    ref: str
    detach: bool = False
    tcp: Literal["keep", "close"] | None = None
    dry_run: bool = False
    or_older: bool = False
    new_pid_namespace: bool = False
    grown: Grown = "refuse"
    preflight: bool = True
    allow_weaker: bool = False
    terminal: int | None = None
    output: int = 1


class Restored(Struct, frozen=True):
    """What became of it. `pid` is the root as we see it, `waits_for` our child to wait for in the foreground.

    `terminal` is our descriptor of the terminal that the tree has from us, if any; `inside` is our PID of a root that
    lives there in PIDs of its own.
    `passed_over` are (id, reason) of newer checkpoints that could not be restored.
    """

    checkpoint: Checkpoint
    verdict: Verdict
    command: tuple[str, ...]
    criu: Criu
    pid: int | None = None
    waits_for: int | None = None
    terminal: int | None = None
    inside: int | None = None
    restore_ms: float = 0.0
    passed_over: tuple[tuple[str, str], ...] = ()


def restore(request: Request, context: Context) -> Restored:
    """Restore the checkpoint that `request.ref` names, or with `or_older` the newest one of its job that restores.

    Raises NoSuchCheckpoint, IntegrityError, PreflightRefused, HostCannot, RestoreFailed. After a failure nothing is
    left behind, and the same can be tried again. What is in use (a PID, a port, a lock) is a reason to wait, not to go
    back to an older one: it may well be the program itself. Raises StoreLocked if another restore of the job goes on.
    """
    need_root("to restore a checkpoint")
    if request.or_older and not request.preflight:
        said = "--or-older goes by what is known beforehand, which --no-preflight passes over"
        raise UsageError(said, hint="leave one of them out")
    repository = context.repository()
    with ExitStack() as stack:
        stack.enter_context(repository.shared())
        newest = repository.get(repository.resolve(request.ref, despite_damage=request.or_older))
        if not request.dry_run and (not request.new_pid_namespace or request.grown == "rewind"):
            # Two at once would find the same PIDs free, and cut back the same files.
            stack.enter_context(repository.restoring(newest.job))
        criu = context.criu()
        damaged = tuple((bad.id, bad.why) for bad in repository.unreadable(newest.job)) if request.or_older else ()
        failures: list[tuple[Checkpoint, CrckptError]] = []
        for checkpoint in _candidates(repository, newest, or_older=request.or_older):
            try:
                done = _restore_one(_Subject(request, context, repository, checkpoint, criu))
            except (IntegrityError, PreflightRefused, RestoreFailed) as error:
                if isinstance(error, PreflightRefused) and error.is_in_use:
                    # An older one would come beside what runs already.
                    error.causes = (*(why for _, why in damaged), *_told(failures), *error.causes)
                    raise
                failures.append((checkpoint, error))
            except (Interrupted, OSError) as error:
                ours = as_ours(error, RestoreFailed, "the restore")
                raise type(ours)(f"{ours.message}; nothing is left behind", hint=ours.hint) from error
            else:
                failed = tuple((bad.id, error.message) for bad, error in failures)
                return replace(done, passed_over=(*damaged, *failed))
    if len(failures) == 1:
        raise failures[0][1]
    causes = tuple(_told(failures))
    raise RestoreFailed(
        f"none of the {len(failures)} checkpoints of {newest.job} can be restored",
        hint=failures[0][1].hint,
        causes=causes,
    )


def _told(failures: list[tuple[Checkpoint, CrckptError]]) -> Iterator[str]:
    return (f"{bad.id[:12]}: {error.message}" for bad, error in failures)


def wait(restored: Restored) -> int:
    """Wait until a program that was restored in the foreground ends; its exit status, or 128 plus the signal.

    Signals that come to us are passed on to it, from the moment on which it was restored. When the terminal stops it,
    we stop too, until a shell continues us.
    """
    assert restored.waits_for is not None
    if restored.terminal is not None:
        status = wait_on_terminal(restored.waits_for, restored.terminal, restored.inside)
    else:
        pid = status = 0
        # Others may be ours as well: whoever lost its parent while the tree was built.
        while pid != restored.waits_for:
            pid, status = os.waitpid(-1, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _candidates(repository: Repository, newest: Checkpoint, *, or_older: bool) -> tuple[Checkpoint, ...]:
    return repository.back_from(newest) if or_older else (newest,)


class _Subject(Struct, frozen=True):
    """One checkpoint to restore, and how."""

    request: Request
    context: Context
    repository: Repository
    checkpoint: Checkpoint
    criu: Criu

    @property
    def sibling(self) -> bool:
        """Whether CRIU makes the root a child of ours. In a namespace of its own, its init is the parent."""
        return not self.request.detach and not self.request.new_pid_namespace

    def orphans(self, tree: ImageTree) -> frozenset[str]:
        """As `orphaned` has them, if the root loses its parent, which is CRIU."""
        return frozenset() if self.sibling else orphaned(tree)


def _restore_one(subject: _Subject) -> Restored:
    request = subject.request
    with ExitStack() as stack:
        early = stack.enter_context(ExitStack())
        began = None
        if not request.dry_run and not request.new_pid_namespace:
            # CRIU takes long to start. Meanwhile we look whether anything stands against the restore.
            began = early.enter_context(_begun(subject, _Outside(), None))
        reading = stack.enter_context(reader(subject.repository, subject.checkpoint))
        tree = tree_of(subject.repository, subject.checkpoint)
        stack.enter_context(limited_waits_of_restore(tree.users))
        images = None
        if not request.dry_run and not tree.is_read_by_position:
            images = Streamed(reading, tree, subject.context.progress, subject.orphans(tree))
            images.begin()
        if began is not None and began.criu.pid in needed_ids(tree):
            # It has by chance a number that the tree had: its next one is another.
            early.close()
            began = None
        details = read_details(subject.repository, subject.checkpoint)
        verdict = _verdict(subject, tree, reading.files, details)
        put_back = prepare(read_attribute_record(details), tree, allow_weaker=request.allow_weaker)
        if put_back.verdict.weaker and not request.allow_weaker:
            raise refused(put_back.verdict.weaker)
        verdict = replace(verdict, warnings=(*verdict.warnings, *put_back.verdict.weaker, *put_back.verdict.lost))
        blockers = verdict.blockers
        if not (request.preflight or request.dry_run):
            blockers = tuple(found for found in blockers if found.key in UNCONDITIONAL)
        if blockers:
            refusal = refused(blockers)
            refusal.is_in_use = verdict.is_in_use
            raise refusal
        if request.dry_run:
            command = _command(subject, Paths(Path("IMAGES"), Path("WORK")), (), stream=not tree.is_read_by_position)
            return Restored(subject.checkpoint, verdict, command, subject.criu)
        outside = _Outside(
            verdict.outside_pipes,
            request.terminal if verdict.needs_terminal else None,
            pipe_contents(subject.repository, subject.checkpoint, verdict.two_way_pipes),
        )
        if began is None or outside != _Outside() or tree.is_read_by_position or put_back.needs_session:
            # What is outside is said to CRIU when it starts, and whether its images are files.
            early.close()
            put_back.enter_session()
            began = stack.enter_context(_begun(subject, outside, tree))
        # Once the tree runs, its files are its own: whatever fails after this, nothing is put back.
        with _files_rewound(subject, verdict):
            return _run(subject, tree, verdict, began, images, _InHold(put_back, Known(details.get("files", {}))))


class _Outside(Struct, frozen=True):
    """What of the host a tree gets besides its files.

    `terminal` is our descriptor of the one that it lives on, `contents` are of the pipes that we make for it.
    """

    pipes: tuple[OutsidePipe, ...] = ()
    terminal: int | None = None
    contents: tuple[PipeContent, ...] = ()


class _Begun(Struct, frozen=True):
    """A CRIU that waits for its images, or has them as files, and what it was started with."""

    criu: CriuRun
    streamer: Streamer
    hold: Hold
    new: namespace.PidNamespace | None
    command: tuple[str, ...]

    def give_up(self) -> None:
        """Let it end, if it has not: without its images it has done nothing, and in the hold it undoes what it did."""
        self.streamer.refuse()
        self.hold.release()
        self.criu.wait()


@contextmanager
def _begun(subject: _Subject, outside: _Outside, tree: ImageTree | None) -> Iterator[_Begun]:
    """Start CRIU. It ends if the block does before it was followed. Its images it gets as files, or streamed.

    `tree` is None if it has not been read yet: then the images are streamed, and there is no new PID namespace.
    """
    request = subject.request
    as_files = tree if tree is not None and tree.is_read_by_position else None
    with ExitStack() as stack:
        work = stack.enter_context(subject.repository.transaction()).path
        # First, to be closed last: a CRIU that was cut short has left children who listen.
        streamer = stack.enter_context(serving(work))
        images = streamer.directory
        if as_files:
            orphans = subject.orphans(as_files)
            images = laid_out(subject.repository, subject.checkpoint, work, subject.context.progress, orphans)
        (hold,) = stack.enter_context(holds_at(work / "hold", "post-restore"))
        new = None
        if request.new_pid_namespace and tree is not None:
            own_session = outside.terminal is None
            new = stack.enter_context(namespace.pid_namespace(tree.root.pid, work, hold.owner, own_session=own_session))
        output = None if request.detach else request.output
        kept = stack.enter_context(outside_ends(outside.pipes, output, outside.contents))
        command = (
            *(entered(new.init, ("pid", "mnt")) if new else ()),
            *_command(subject, Paths(images, work, hold.script), tuple(kept), stream=as_files is None),
        )
        with interrupts_put_off():
            keep = (streamer.descriptor, *kept.values())
            criu = CriuRun(
                command, work / "restore.log", holds=(hold,), terminal=outside.terminal, keep=keep, limited=True
            )
            began = _Begun(criu, streamer, hold, new, command)
            stack.callback(began.give_up)
        yield began


def _verdict(subject: _Subject, tree: ImageTree, files: tuple[StoredFile, ...], details: dict[str, Any]) -> Verdict:
    request = subject.request
    planned = PlannedRestore(
        tree=tree,
        created=subject.checkpoint.created,
        cpu_features=subject.checkpoint.host.cpu_features,
        keeps_connections=(request.tcp or subject.checkpoint.options.tcp) == "keep",
        append_sizes=details.get("append_sizes", {}),
        grown=request.grown,
        new_pid_namespace=request.new_pid_namespace,
        has_terminal=request.terminal is not None and not request.detach,
        crius=(subject.checkpoint.host.criu_version, subject.criu.version),
        closed_pipes=frozenset(details.get("closed_pipes", ())),
        is_orphan=not subject.sibling,
        sockets=frozenset() if request.detach else _sockets(request.output),
        terminal_owner=None if request.terminal is None or request.allow_weaker else os.fstat(request.terminal).st_uid,
        may_have_consoles=request.allow_weaker,
    )
    return judge_restore(planned, survey(planned, files, subject.context.store))


def _sockets(output: int) -> frozenset[int]:
    """Which of the tree's outputs would be sockets; `output` is our descriptor for its standard output."""
    found = set()
    for number, ours in ((1, output), (2, 2)):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(ours).st_mode):
                found.add(number)
    return frozenset(found)


def _command(subject: _Subject, paths: Paths, inherit: tuple[str, ...], *, stream: bool) -> tuple[str, ...]:
    options = replace(subject.checkpoint.options, tcp=subject.request.tcp or subject.checkpoint.options.tcp)
    words = restore_command(subject.criu.path, paths, options, sibling=subject.sibling, inherit=inherit, stream=stream)
    return (*restore_words(subject.criu.path), *words)


class _InHold(Struct, frozen=True):
    """What a restored tree gets in the hold, and what it had open when it was dumped."""

    put_back: PutBack
    files: Known


def _run(
    subject: _Subject, tree: ImageTree, verdict: Verdict, began: _Begun, images: Streamed | None, in_hold: _InHold
) -> Restored:
    """Let CRIU build the tree, look in the hold whether it is whole, put back what CRIU drops, and let it run."""
    new, root = began.new, tree.root.pid
    lost: list[Finding] = []

    def look() -> None:
        began.streamer.check()
        complete(tree, new.init if new else None, images)
        lost.extend(check(tree, in_hold.files, new.init if new else None, allow_weaker=subject.request.allow_weaker))
        lost.extend(in_hold.put_back(new.init if new else None))

    # A namespace of its own ends with its init.
    ours = frozenset[int]() if new else needed_ids(tree)
    with interrupts_put_off():
        if images is not None:
            began.streamer.serve(images)
        with leftovers.ended_on_failure(ours):
            outcome = began.criu.follow(began.hold, look)
            if not outcome.ok:
                with interrupts_let_in():
                    began.streamer.check()
                    # For failures only, as what explains them.
                    from crckpt.ops.resources import in_images

                    raise explained(outcome, RestoreFailed, "the restore", in_images(tree), "; nothing is left behind")
            if subject.request.detach:
                lost.extend(_ended(root, new))
        _lift_lock_left_behind(subject.checkpoint)
        pid = new.init if new else root
        if subject.request.detach:
            interrupts_too_late()
        else:
            pass_signals_on(pid, on_our_terminal=verdict.needs_terminal)
    return Restored(
        subject.checkpoint,
        replace(verdict, warnings=(*verdict.warnings, *lost)),
        began.command,
        subject.criu,
        pid=pid,
        waits_for=None if subject.request.detach else new.parent if new else root,
        terminal=subject.request.terminal if verdict.needs_terminal else None,
        inside=proc.outer_pids((root,), new.init).get(root) if new and verdict.needs_terminal else None,
        restore_ms=(outcome.ended - outcome.started) * 1000,
    )


def _lift_lock_left_behind(checkpoint: Checkpoint) -> None:
    """Lift CRIU's lock of the network namespace in which the tree was dumped, if that has a name.

    CRIU made another one for the tree, and has no lock there.
    """
    if checkpoint.stopped and checkpoint.run_id and checkpoint.options.network_lock == "nftables":
        for place in network_locks.named_networks():
            # The tree runs by now: what fails here changes nothing of that, and `rm` tries it again.
            with suppress(HostCannot):
                network_locks.lift_lock(checkpoint.run_id, place)


def _ended(root: int, new: namespace.PidNamespace | None) -> Iterator[Finding]:
    """What is to be said of a root that has ended by now, after CRIU. Raises RestoreFailed if it failed."""
    ending = leftovers.ending_of(new.init if new else root)
    if ending is None:
        return
    if ending.code == 0:
        yield cause("root-ended").told(pid=str(root))
        return
    raise RestoreFailed(
        f"the root of the restored tree, PID {root}, ended at once{ending.how}; nothing is left behind",
        hint="read the program's output: crckpt restore REF, without --detach",
    )


def complete(tree: ImageTree, init: int | None, images: Streamed | None) -> None:
    """In the hold: put memory into place that is not. Every task is to live before and afterwards.

    The tree is in our pid namespace, or that of the process `init`. Raises RestoreFailed, IntegrityError, OSError.
    """
    # Of a tree with PIDs of its own we do not know what its tasks are called.
    living = [] if tree.is_apart("pid") else [process for process in tree.processes if process.state != ZOMBIE]
    if missing := proc.find_ended_tasks(
        ((process.pid, thread.tid) for process in living for thread in process.threads), init
    ):
        said = f"CRIU did not bring back all of the tree: {_listed(missing)} missing"
        raise RestoreFailed(f"{said}; nothing is left behind")
    if images is None:
        return
    images.place(init)
    # That takes its time. For who is killed meanwhile CRIU would wait without end, or crash.
    if ended := proc.find_ended_tasks(((process.pid, process.pid) for process in living), init):
        raise RestoreFailed(
            f"PID {_listed(ended)} ended while memory was filled; nothing is left behind",
            hint="see whether memory ran out (journalctl -k -g oom); then try again",
        )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(number) for number in numbers)


@contextmanager
def _files_rewound(subject: _Subject, verdict: Verdict) -> Iterator[None]:
    with ExitStack() as stack:
        for rewind in verdict.rewinds:
            path = Path(rewind.path)
            kept = f"{path.name}.after-{subject.checkpoint.id[:12]}"
            stack.enter_context(put_back_on_failure(path, rewind.size, kept))
        yield


def _only_to_write(output: int) -> int:
    """A descriptor of its own for our output. A shell's terminal can be read there, too: what we are typed in."""
    if os.isatty(output):
        with suppress(OSError):  # of a terminal that has no name here
            return os.open(f"/proc/self/fd/{output}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(output)


@contextmanager
def outside_ends(
    pipes: tuple[OutsidePipe, ...], output: int | None, contents: tuple[PipeContent, ...] = ()
) -> Iterator[dict[str, int]]:
    """Values for --inherit-fd, each with our descriptor: `output`, if there is one, else /dev/null.

    For each of `contents` it is a new pipe with the same bytes in it.
    """
    ends: dict[str, int] = {}
    writers: list[int] = []
    try:
        for content in contents:
            descriptor, writer = filled_pipe(content.size, content.content)
            ends[f"fd[{descriptor}]:pipe:[{content.pipe_id}]"] = descriptor
            writers.append(writer)
        for pipe in pipes:
            if output is not None:
                descriptor = _only_to_write(2 if pipe.errors else output)
            else:
                descriptor = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
            ends[f"fd[{descriptor}]:pipe:[{pipe.inode}]"] = descriptor
        yield ends
    finally:
        for descriptor in (*ends.values(), *writers):
            os.close(descriptor)
