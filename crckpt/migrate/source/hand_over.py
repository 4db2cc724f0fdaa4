"""The hand-over at the source, in the hold of the last dump."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from crckpt.causes import Finding
from crckpt.errors import CrckptError, DumpFailed, MoveInDoubt
from crckpt.host import proc
from crckpt.host.disk.checked_files import regular_opened
from crckpt.host.network.late_packets import Capture
from crckpt.host.network.packet_filter import find_removal
from crckpt.host.proc.file_users import list_writable
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.process.signals import ignore_interrupts
from crckpt.host.steps import step
from crckpt.migrate.addresses import leave_source, list_source_addresses, unlocked_source
from crckpt.migrate.preflight.answers import ANSWERS_WITHIN_S
from crckpt.migrate.preflight.asked_files import find_shared_file_systems
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.migrate.preflight.recheck import find_frozen, refuse_changed_files, refuse_new_rights
from crckpt.migrate.preflight.report import GateReport
from crckpt.migrate.request import MigrateRequest, MoveReport
from crckpt.migrate.source.hooks import run_hook, run_late_hook
from crckpt.migrate.transfer.send_files import SentLogs
from crckpt.migrate.transfer.send_packs import send_packs, serve_reads
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.ssh import Peer
from crckpt.ops.context import Progress, ignore_progress
from crckpt.store import Checkpoint, Repository
from crckpt.store.moves import Move, advance, store_move

_COMPARED_WITHIN_S: Final = 2.0 * ANSWERS_WITHIN_S
_NO_LOGS: Final = SentLogs(())

# How long the destination may take for its part, in seconds: it may live and do nothing while the tree is frozen.
_ANSWER_S: Final = 120
# Bytes per second, at least.
_SLOWEST_RESTORE: Final = 16 << 20
# Of --bandwidth, for each of some moves at once; used before the speed is known.
_SLOWEST_LINK: Final = 4 << 10
# The link may become slower than it was during the rounds.
_SLOWER: Final = 10

# Seconds: a killed process may have to free much memory first.
_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.005
# A tree may have more processes than crckpt may have descriptors.
_MOST_PIDFDS: Final = 256


class SourceMove:
    """One move as the source sees it: its record, and the connection to the destination."""

    def __init__(
        self, move: Move, repository: Repository, peer: Peer, logs: SentLogs = _NO_LOGS, *, is_late: bool = False
    ) -> None:
        """Store the record `move`. `is_late`: packs are sent when the tree runs there."""
        # Packs that the destination may read before that.
        self.readable: set[str] | None = set() if is_late else None
        if self.readable is not None:
            serve_reads(peer.connection, repository.backend, self.readable)
        self.logs = logs
        self.repository = repository
        self.connection, self.hello = peer.connection, peer.hello
        self.move = store_move(repository.backend, move)

    def advance(self, state: str, **changes: object) -> None:
        """Write that the move has come to `state`, durably."""
        step(f"move.{state}")
        self.move = store_move(self.repository.backend, advance(self.move, state, **changes))  # type: ignore[arg-type]

    def offer_packs_of(self, checkpoint: Checkpoint, progress: Progress) -> None:
        """Send the packs that the destination lacks; or, for post-copy, let it read them."""
        if self.readable is None:
            self.send_packs_of(checkpoint, progress)
        else:
            self.readable.update(use.digest for use in checkpoint.packs)

    def send_packs_of(self, checkpoint: Checkpoint, progress: Progress = ignore_progress) -> None:
        """Send the packs that the destination lacks."""
        digests = (use.digest for use in checkpoint.packs)
        within_s = limit_sending(checkpoint, self.connection.bytes_per_s or 0)
        with self.repository.shared(), self.connection.limited(within_s):
            send_packs(self.connection, self.repository.backend, digests, progress)


class LiveHandOver:
    """The hand-over of a tree that a dump holds frozen. The methods are those of ops.dump.checkpoint.HandOver."""

    def __init__(self, source: SourceMove, request: MigrateRequest, found: GateReport, report: MoveReport) -> None:
        """`found`: what both hosts had alike when the gate was passed."""
        self._source = source
        self._request, self._options = request, request.options
        self._found = found
        self._report = report
        self.capture = Capture(())
        self._removal: tuple[str, ...] | None = None
        self.at_least = source.hello.highest_sequence + 1
        self.frozen_since = 0.0
        self.ran_at = 0.0
        self._running: messages.Running | None = None
        self._failure: CrckptError | None = None
        self.failed_hook: Finding | None = None
        self._tree_end: TreeEnd | None = None
        self._checkpoint: Checkpoint | None = None

    def begin(self, tree: proc.Tree, frozen_since: float) -> None:
        self.frozen_since = frozen_since
        # Before its buffer is full of what came before the freeze.
        self.capture.take()
        if not self._options.allow_weaker:
            refuse_new_rights(tree.root.pid, self._found.rights)
        if self._found.compared is not None and self._options.preflight:
            refuse_changed_files(find_frozen(tree.root.pid), self._found.compared, self._compare)
        if shared := find_shared_file_systems():
            # The destination opens the files next.
            write_back(tree.pids, shared)
        self._tree_end = TreeEnd(tree)
        self._source.advance("handing-over", root=proc.identify_live_root(tree.root), is_settled=False)

    def _compare(self, files: tuple[AskedFile, ...]) -> tuple[int, ...]:
        """Ask the destination which of these files are the same there."""
        connection = self._source.connection
        with connection.limited(_COMPARED_WITHIN_S):
            connection.send(messages.Compare(messages.encode(files)))
            return connection.receive(messages.Compared).same

    def prepare(self, checkpoint: Checkpoint, manifest: bytes) -> None:
        source = self._source
        source.move = replace(source.move, checkpoint=checkpoint.id)
        # No progress is shown: a terminal that takes nothing (^S) would keep the tree frozen.
        source.offer_packs_of(checkpoint, ignore_progress)
        source.logs.send_gained(source.connection)
        self._checkpoint = checkpoint
        move = source.move
        run_hook(self._request, move, "prepare")
        with source.connection.limited(limit_restore(checkpoint)):
            source.connection.send(messages.Prepare(move.id, move.job, checkpoint.id, manifest, self._options))
            # While the other side is busy.
            self._removal = find_removal(checkpoint.run_id) if checkpoint.run_id else None
            source.connection.receive(messages.Prepared)

    def decide(self) -> None:
        self._source.advance("committing")

    def end(self) -> None:
        try:
            assert self._tree_end is not None
            assert self._checkpoint is not None
            self._tree_end.wait()
            self._source.advance("ended", is_settled=False)
            self.failed_hook = run_late_hook(self._request, self._source.move, "commit")
            ended = time.monotonic()
            running = self._running = complete_hand_over(
                self._source, self._options.addresses, self._checkpoint, self._removal, self.capture.take
            )
            self.ran_at = max(ended, time.monotonic() - running.ran_for_ms / 1000)
            if self._source.readable is not None:
                self._report.say("it runs there; sending its memory ...")
                self._complete()
            # An error would say that it runs here, and the user's command would send its clients here.
            ignore_interrupts()
        except (CrckptError, OSError) as error:
            self._failure = error if isinstance(error, CrckptError) else CrckptError(str(error))

    def get_running(self) -> messages.Running:
        """Return what the destination says of the tree that runs there. Raises MoveInDoubt if it may not run there."""
        if self._running is not None:
            return self._running
        if isinstance(self._failure, MoveInDoubt):
            raise self._failure
        raise make_in_doubt_error(self._source.move, self._failure)

    def _complete(self) -> None:
        assert self._checkpoint is not None
        source = self._source
        try:
            source.send_packs_of(self._checkpoint, self._report.sending)
            source.connection.receive(messages.Complete)
        except CrckptError as error:
            self._running = None
            raise MoveInDoubt(
                f"{error.message}; {source.move.peer} ended {source.move.job}, because not all of its memory had "
                "arrived. What it did there is lost; its checkpoint is safe here",
                hint=f"restore it there: crckpt migrate --resume {source.move.id}",
            ) from error
        source.advance("done", is_settled=True)


def complete_hand_over(
    source: SourceMove,
    addresses: tuple[str, ...],
    checkpoint: Checkpoint,
    removal: tuple[str, ...] | None = None,
    take_packets: Callable[[], tuple[bytes, ...]] = tuple,
) -> messages.Running:
    """Remove the addresses here, let the destination run the tree that it holds, and record that it does.

    The network lock of the `checkpoint`'s CRIU drops packets here. `removal` removes it, if that was looked for.
    `take_packets` returns the packets that have come for the addresses.
    """
    leave_source(list_source_addresses(addresses))
    within_s = limit_restore(checkpoint)
    with unlocked_source(checkpoint.run_id, removal), source.connection.limited(within_s):
        source.connection.send(messages.Ended(source.move.id, take_packets()))
        running = source.connection.receive(messages.Running)
    if source.readable is None:
        source.advance("done", is_settled=True)
    return running


def make_in_doubt_error(move: Move, error: CrckptError | None) -> MoveInDoubt:
    """Make the error of a move whose tree has ended here, and may not run on the destination yet."""
    why = f": {error.message}" if error is not None else ""
    return MoveInDoubt(
        f"{move.job} has ended here, and {move.peer} has not confirmed that it runs there{why}; its checkpoint is safe "
        "on both hosts",
        hint=f"finish the move: crckpt migrate --resume {move.id}",
    )


def limit_sending(checkpoint: Checkpoint, bytes_per_s: float) -> float:
    """Return how many seconds it may take to send what is new in a checkpoint, after sending at this speed."""
    return _ANSWER_S + checkpoint.statistics.new_bytes / max(bytes_per_s / _SLOWER, _SLOWEST_LINK)


def limit_restore(checkpoint: Checkpoint) -> float:
    """Return how many seconds the restore of a checkpoint may take there."""
    return _ANSWER_S + checkpoint.statistics.raw_bytes / _SLOWEST_RESTORE


class TreeEnd:
    """The end of all processes of a tree that is frozen now: CRIU kills them after the commit, and does not wait."""

    def __init__(self, tree: proc.Tree) -> None:
        """Open pidfds, of the first processes: they report the end at once."""
        self._others = tree.processes[_MOST_PIDFDS:]
        # A zombie that its frozen parent has not reaped has a pidfd, too.
        self._held = [HeldProcess(process.pid) for process in tree.processes[:_MOST_PIDFDS]]

    def wait(self) -> None:
        """Wait until every process has ended, reaped or not. Raises DumpFailed if one does not end."""
        until = time.monotonic() + _WITHIN_S
        error = DumpFailed("a process of the tree does not end", hint="find it: ps -o pid,stat,wchan -e")
        for process in self._held:
            if not process.ends_within(until - time.monotonic()):
                raise error
            process.close()
        for other in self._others:
            while other.identity.find() is not None:
                if time.monotonic() >= until:
                    raise error
                time.sleep(_LOOK_S)


def write_back(pids: Iterable[int], devices: Container[int]) -> None:
    """Write back what these processes have open for writing on the file systems `devices`.

    While they run, this leaves little to their freeze; they go on writing. Another host that opens the files afterwards
    has their new content and size; one that has opened them before may not (nfs(5), close-to-open cache consistency).
    Raises DumpFailed.
    """
    done: set[tuple[int, int]] = set()
    for pid in pids:
        for link in list_writable(pid):
            try:
                status = Path(link).stat()
                identity = status.st_dev, status.st_ino
                if not stat.S_ISREG(status.st_mode) or status.st_dev not in devices or identity in done:
                    continue
                # A process that runs may have put a device or a FIFO there since.
                with regular_opened(link) as descriptor:
                    if descriptor is not None:
                        step("write-back.sync", link)
                        os.fsync(descriptor)
                done.add(identity)
            except (FileNotFoundError, ProcessLookupError):
                # The process has removed the file, or has ended.
                continue
            except OSError as error:
                raise DumpFailed(
                    f"{Path(link).readlink()} cannot be written back to its file system: {error.strerror}",
                    hint="root must be able to open it: export NFS with no_root_squash",
                ) from error
