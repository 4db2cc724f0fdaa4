"""The source's side of a move: rounds while the tree runs, then the hand-over in the hold of the last dump."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import to_builtins
from msgspec.structs import replace

from crckpt.causes import Finding, preflight_refusal
from crckpt.causes.finding import distinct
from crckpt.errors import (
    NOT_MADE,
    TREE_RUNS,
    UNCHANGED,
    CommandFailure,
    CrckptError,
    DumpFailed,
    Interrupted,
    TargetNotRunning,
    TreeStopped,
)
from crckpt.host import proc
from crckpt.host.network.closing import report_closing, wait_for_closing
from crckpt.host.network.late_packets import capturing
from crckpt.host.network.newcomers import newcomers_held, wait_until_accepted
from crckpt.host.process.signals import stops_deferred
from crckpt.migrate.addresses import list_source_addresses
from crckpt.migrate.preflight.asked_files import find_shared_file_systems
from crckpt.migrate.preflight.report import GateReport, word_there
from crckpt.migrate.request import MigrateRequest, MigrateResult, MoveReport, RoundSummary
from crckpt.migrate.source.hand_over import LiveHandOver, SourceMove, make_in_doubt_error, write_back
from crckpt.migrate.source.hooks import run_hook, run_late_hook
from crckpt.migrate.source.rounds import (
    Round,
    check_budget,
    estimate_downtime,
    explain_end,
    measure_round,
    rounds_removed,
)
from crckpt.migrate.transfer.send_files import SentLogs
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.ssh import Peer
from crckpt.model import PAGE_SIZE, CheckpointId, JobName, Pid
from crckpt.ops.context import Context
from crckpt.ops.dump.dump import dump
from crckpt.ops.dump.request import DumpRequest, PreCopy
from crckpt.ops.dump.result import DumpResult
from crckpt.ops.failures import to_crckpt_error
from crckpt.store import Repository
from crckpt.store.format.manifest import MOST_BYTES
from crckpt.store.layout import manifest_name
from crckpt.store.moves import MOST_ROUNDS, begin_move, mark_reported, read_move, store_move

_ABORTED_WITHIN_S: Final = 10.0
# What a dump says of a tree that runs. The checkpoints of the rounds were made.
_OF_DUMP: Final = (TREE_RUNS, NOT_MADE, UNCHANGED)


def read_manifest(repository: Repository, checkpoint: CheckpointId) -> bytes:
    """Read a manifest as it is stored. Raises OSError, IntegrityError."""
    return repository.backend.read(manifest_name(checkpoint), MOST_BYTES)


def move_tree(
    request: MigrateRequest,
    root: proc.Process,
    context: Context,
    repository: Repository,
    peer: Peer,
    found: GateReport,
    report: MoveReport,
) -> MigrateResult:
    """Move the tree of `request`, which has this root.

    The gate was passed, with this report, and the last move of the job is settled. Before the commit every failure lets
    the tree keep running here, and is raised as it is. Raises MoveInDoubt if the tree has ended here and does not run
    there yet.
    """
    began = time.monotonic()
    addresses = list_source_addresses(request.options.addresses)
    source = _begin(request, root, repository, peer, found)
    hand_over = LiveHandOver(source, request, found, report)
    with rounds_removed(source), _failure_recorded(source, root, request):
        rounds, why_stopped = _copy_rounds(request, root, context, source, report)
        run_hook(request, source.move, "before-freeze")
        wait_for_closing(addresses)
        report.say("handing over ...")
        # What it has written so far, so that the freeze need not wait for that.
        _write_back_shared(root)
        source.logs.send_gained(peer.connection)
        # A restore that began before could bring back a copy after the tree has ended here.
        with (
            # Stopped once the tree has ended here, crckpt would leave it on neither host.
            stops_deferred(),
            repository.restoring(source.move.job),
            capturing(addresses) as hand_over.capture,
            newcomers_held(addresses, source.move.id),
        ):
            wait_until_accepted(proc.read_tree(root).pids, addresses)
            # No progress is shown: a terminal that takes nothing (^S) would keep the tree frozen.
            last = dump(_dump_request(request, source.move.job, None), context, hand_over=hand_over).checkpoint
    running = hand_over.get_running()
    assert last is not None
    late = (hand_over.failed_hook,) if hand_over.failed_hook is not None else ()
    # Without their address they send nothing more: they are as they were when it was removed.
    cut = report_closing("connections-cut", addresses)
    downtime_ms = (hand_over.ran_at - hand_over.frozen_since) * 1000
    return MigrateResult(
        source.move.job,
        request.host,
        source.move.id,
        running.pid,
        last.id,
        rounds,
        why_stopped,
        peer.connection.sent_bytes,
        last.statistics.raw_bytes,
        downtime_ms,
        time.monotonic() - began,
        request.max_downtime_ms is not None and downtime_ms > request.max_downtime_ms,
        warnings=distinct((*found.warnings, *_reword(running.warnings, source, context), *cut, *late)),
        terminal_log=running.terminal_log,
    )


def _begin(
    request: MigrateRequest, root: proc.Process, repository: Repository, peer: Peer, found: GateReport
) -> SourceMove:
    """Send what the logs have, and store the record of the move: from then on it is `copying`."""
    job = JobName(request.job or "")
    before = read_move(repository.backend, job)
    move = replace(
        begin_move("source", job, request.host),
        peer_store=peer.hello.store,
        remote=(request.remote_crckpt, *((request.remote_store,) if request.remote_store else ())),
        options=to_builtins(request.options),
        root=proc.identify_live_root(root),
        # Of a move that failed, or of a crckpt that was killed.
        rounds=before.rounds if before is not None else (),
    )
    logs = SentLogs(found.logs)
    # Before anything is frozen: this also compares what is there already.
    logs.send_gained(peer.connection)
    return SourceMove(move, repository, peer, logs, is_late=request.options.lazy == "source")


@contextmanager
def _failure_recorded(source: SourceMove, root: proc.Process, request: MigrateRequest) -> Iterator[None]:
    """If the block fails, record how the move ended, tell the destination, and run the user's hook."""
    try:
        yield
    except BaseException as error:
        why = str(error) or type(error).__name__
        if isinstance(error, CrckptError):
            # Without what a dump says of a tree that keeps running.
            why = error.what if error.state in _OF_DUMP else error.message
        _record_failure(source, why)
        failed_hook = run_late_hook(request, source.move, "abort")
        if isinstance(error, OSError):
            error = to_crckpt_error(error, DumpFailed, "the move")
        if isinstance(error, CommandFailure):
            raise say_where_it_runs(error, source.move.job, root.pid, failed_hook) from error
        raise


def _record_failure(source: SourceMove, why: str) -> None:
    """Record what became of a move whose dump has failed. Raises MoveInDoubt if the tree has ended all the same."""
    if source.move.state == "committing":
        # It is not known whether the hold took the commit: the tree decides.
        root = source.move.root
        while root is not None and root.is_held():
            proc.wait_until_gone((root.pid,), 0.1)
        if root is not None and root.find() is None:
            source.advance("ended", is_settled=False)
    if source.move.state == "ended":
        raise make_in_doubt_error(source.move, None)
    if source.move.is_over:
        return
    # Before the hand-over it has no record of the move.
    is_settled = source.move.state == "copying"
    with suppress(CrckptError, OSError):
        source.advance("aborted", why=why, is_settled=is_settled)
    # The destination gives up by itself once the connection ends. With an Abort it also removes what it received.
    with suppress(CrckptError, OSError, Interrupted):
        source.connection.abort(why, timeout=_ABORTED_WITHIN_S)
        if not is_settled:
            source.move = mark_reported(source.repository.backend, source.move)


def _dump_request(request: MigrateRequest, job: JobName, number: int | None) -> DumpRequest:
    """Build the request of a round, which have numbers from 1 on, or of the last dump, which ends the tree."""
    # The first one copies all: rounds of CRIU's own keep its freeze short.
    pre_copy = PreCopy(2) if number == 1 else None
    return DumpRequest(
        target=request.target,
        job=job,
        stop=number is None,
        tcp=request.options.tcp,
        # If the move fails, the user finds it in the list.
        note=f"move to {request.host}, round {number}" if number is not None else None,
        preflight=request.options.preflight,
        incremental=True,
        pre_copy=pre_copy,
        other_program=request.other_program,
        # The tree goes on with them after a round, and closed ones are lost in any case.
        skip_in_flight=number is not None or request.options.tcp == "close",
        # Copies would be sent, too: during the freeze, more of them than of new pages. The first round makes them.
        copies=pre_copy is not None,
        # The tree is frozen then: a search takes longer than to send a page that the other side has elsewhere.
        searches=number is not None,
    )


def _copy_rounds(
    request: MigrateRequest, root: proc.Process, context: Context, source: SourceMove, report: MoveReport
) -> tuple[tuple[RoundSummary, ...], str]:
    context = replace(context, progress=report.storing)
    rounds: list[Round] = []
    summaries: list[RoundSummary] = []
    before: DumpResult | None = None
    while True:
        began = time.monotonic()
        taken = dump(
            _dump_request(request, source.move.job, len(rounds) + 1),
            replace(context, copy_progress=report.copying) if not rounds else context,
        )
        checkpoint = taken.checkpoint
        assert checkpoint is not None
        # It is removed after the move, or after the next one.
        kept = (*source.move.rounds, checkpoint.id)[-MOST_ROUNDS:]
        source.move = store_move(source.repository.backend, replace(source.move, rounds=kept))
        dumped, sent = time.monotonic(), source.connection.sent_bytes
        source.offer_packs_of(checkpoint, report.sending)
        # Each is at least as long there as the checkpoint says.
        source.logs.send_gained(source.connection)
        send_s = time.monotonic() - dumped
        # Else the other host sees the files as they were.
        _write_back_shared(root)
        # The gate's last word; the destination also unpacks the memory.
        manifest = read_manifest(source.repository, checkpoint.id)
        source.connection.send(messages.CheckRestore(source.move.id, checkpoint.id, manifest, request.options))
        verdict = source.connection.receive(messages.Verdict)
        if verdict.blockers and request.options.preflight:
            raise preflight_refusal(_reword(verdict.blockers, source, context))
        last = measure_round(taken, dumped - began, before, source.connection.sent_bytes - sent, send_s)
        rounds.append(last)
        before = taken
        written_per_s, copies = last.written_per_s, taken.pre_copy
        if len(rounds) == 1 and copies is not None and copies.rounds and taken.lineage is not None:
            # The first dump has rounds of CRIU's own.
            written_per_s = taken.lineage.written_pages * PAGE_SIZE / (copies.rounds[-1].ms / 1000)
        downtime = estimate_downtime(rounds, written_per_s, is_lazy=request.options.lazy is not None)
        spent, frozen_ms = time.monotonic() - began, last.frozen_s * 1000
        summaries.append(
            RoundSummary(last.raw_bytes, last.sent_bytes, spent, frozen_ms, downtime.ms, last.written_per_s)
        )
        report.end_round(len(rounds), summaries[-1])
        if why := explain_end(request, rounds, downtime, source.connection.bytes_per_s):
            check_budget(request, downtime)
            return tuple(summaries), why


def _write_back_shared(root: proc.Process) -> None:
    if shared := find_shared_file_systems():
        write_back(proc.read_tree(root).pids, shared)


def _reword(found: tuple[Finding, ...], source: SourceMove, context: Context) -> tuple[Finding, ...]:
    """Return findings of the destination's restore in the words of a move."""
    ours, theirs = context.criu().version, source.hello.criu_version
    return tuple(word_there(found, source.move.peer, ours=ours, theirs=theirs))


def say_where_it_runs(error: CommandFailure, job: JobName, pid: Pid, failed_hook: Finding | None) -> CommandFailure:
    """Return an error of a move that was aborted, which says what became of the program."""
    if isinstance(error, TargetNotRunning):
        ended = f"{job} (PID {pid}) ended while it was being moved; it was not moved"
        error = error.reword(ended, state="", hint="")
    elif error.state in _OF_DUMP or not (error.state or isinstance(error, TreeStopped)):
        error = error.reword(state=f"{job} keeps running here")
    return error if failed_hook is None else error.reword(error.message, state=failed_hook.what)
