"""Finish an interrupted move, from the record on this side; report aborted moves to their destinations.

Those may keep a tree in doubt until they know: the source's word is the only one that ends the doubt without a guess.
So it is owed to the host to which the move went, and to no other one, whatever happens with the job: a later move to
another host does not wait for it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from crckpt.criu.hold import AfterCommit
from crckpt.errors import CrckptError, MoveInDoubt, NoSuchCheckpoint, PreflightRefused, RemoteError
from crckpt.helper.address_guard.client import GuardedAddresses
from crckpt.host import proc
from crckpt.host.steps import step
from crckpt.migrate.addresses import unlocked_source
from crckpt.migrate.destination import recorded
from crckpt.migrate.source.hand_over import SourceMove, complete_hand_over, make_in_doubt_error
from crckpt.migrate.source.move import read_manifest
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.ssh import Peer, connected
from crckpt.model import JobName, MoveId
from crckpt.ops.context import Context
from crckpt.ops.restore.restore import restore
from crckpt.store import Repository
from crckpt.store.layout import checkpoint_directory, move_name, unreported_name
from crckpt.store.move_states import find_report_step
from crckpt.store.moves import Move, advance, mark_reported, read_all_moves, read_move, store_move, take_over

# Seconds: CRIU decides within moments once its crckpt has died.
_DECIDED_WITHIN_S: Final = 15.0


class ResumeResult(Struct, frozen=True):
    """The outcome of a move.

    - `runs_here`: the tree runs on this host
    - `pid`: its root, on the host where it runs
    - `terminal_log`: on that host, the file with the output of its new terminal, if it got one now
    """

    move: Move
    runs_here: bool
    pid: int | None = None
    terminal_log: str = ""


def resume(
    move_id: MoveId,
    context: Context,
    *,
    source_is_gone: bool = False,
    same_process: bool = False,
    answer_within_s: float | None = None,
) -> ResumeResult:
    """Finish the move. `source_is_gone`: the user says that the source will never run the tree again.

    `same_process`: this process began it. `answer_within_s`: seconds until the other side must have answered; without
    them the user may type a password. Raises NoSuchCheckpoint if there is no such move, PreflightRefused if a
    crckpt still works on it, MoveInDoubt if it cannot be finished from here now, and what a restore raises.
    """
    repository = context.repository()
    repository.require_writable()
    found = next((move for move in read_all_moves(repository.backend)[0] if move.id == move_id), None)
    if found is None:
        raise NoSuchCheckpoint(
            f"there is no move {move_id} in the store {repository.backend.location}",
            hint="list moves: crckpt migrate --list",
        )
    if not found.is_over and found.owner.is_alive and not same_process:
        raise PreflightRefused(
            f"crckpt (PID {found.owner.pid}) is still moving {found.job}",
            hint=f"wait until it ends; if it does not: kill -9 {found.owner.pid}, then try again",
            is_in_use=True,
        )
    move = _wait_for_criu(found, repository)
    if move.state != found.state and not move.is_replaced:
        move = store_move(repository.backend, take_over(move))
    if move.side == "source":
        return _resume_source(move, repository, context, answer_within_s)
    return _resume_destination(move, repository, context, source_is_gone=source_is_gone)


def _wait_for_criu(move: Move, repository: Repository) -> Move:
    """Wait until CRIU has let the tree run or ended it, and judge the move."""
    recorded.wait_until_decided(move)
    now = recorded.end_unfinished_tree(repository, move)
    if now.root is not None and (now.state in ("committing", "committed")):
        proc.wait_until_gone((now.root.pid,), 0.5)
        until = proc.uptime_ticks() + _DECIDED_WITHIN_S * 100
        while now.root.is_held() and proc.uptime_ticks() < until:
            proc.wait_until_gone((now.root.pid,), 0.1)
        now = recorded.end_unfinished_tree(repository, move)
    if now.state == "committing":
        raise MoveInDoubt(
            f"CRIU still holds the tree of {move.job}", hint=f"try again in a moment: crckpt migrate --resume {move.id}"
        )
    return now


def _resume_source(move: Move, repository: Repository, context: Context, answer_within_s: float | None) -> ResumeResult:
    if move.state == "done":
        return ResumeResult(move, runs_here=False)
    if move.state == "aborted" and move.is_settled:
        return _describe(move, runs_here=not move.is_replaced)
    crckpt, *store = move.remote
    remote_store = store[0] if store else None
    try:
        with connected(move.peer, crckpt, remote_store, context, repository, answer_within_s=answer_within_s) as peer:
            if move.state == "aborted":
                move = report_abort(repository, peer, move)
                return _describe(move, runs_here=not move.is_replaced)
            source = SourceMove(take_over(move), repository, peer)
            source.connection.send(messages.Resume(move.id))
            if source.connection.receive(messages.MoveState).state == "done":
                source.advance("done", is_settled=True)
                return ResumeResult(source.move, runs_here=False)
            running = _hand_over_again(source)
            return ResumeResult(source.move, False, running.pid, running.terminal_log)
    except CrckptError as error:
        if move.state == "aborted":
            # This host knows that it was aborted, whatever the other side has kept.
            raise error.reword(hint=error.hint or explain_unreported(repository, move)) from error
        raise make_in_doubt_error(move, error) from error


def _describe(move: Move, *, runs_here: bool) -> ResumeResult:
    return ResumeResult(move, runs_here, move.root.pid if runs_here and move.root is not None else None)


def _hand_over_again(source: SourceMove) -> messages.Running:
    move = source.move
    assert move.checkpoint is not None
    checkpoint = source.repository.get(move.checkpoint)
    source.send_packs_of(checkpoint)
    manifest = read_manifest(source.repository, checkpoint.id)
    # All packs are there now.
    options = replace(msgspec.convert(move.options, messages.RestoreOptions), lazy=None)
    source.connection.send(messages.Prepare(move.id, move.job, checkpoint.id, manifest, options))
    answer = source.connection.receive(messages.Prepared, messages.Running)
    if isinstance(answer, messages.Running):
        # The destination knew that the tree has ended here.
        with unlocked_source(checkpoint.run_id):
            source.advance("done", is_settled=True)
        return answer
    return complete_hand_over(source, options.addresses, checkpoint)


def _resume_destination(move: Move, repository: Repository, context: Context, *, source_is_gone: bool) -> ResumeResult:
    if move.state == "done":
        return _describe(move, runs_here=True)
    if move.state == "aborted":
        recorded.give_up_left_addresses(move)
        return ResumeResult(move, runs_here=False)
    if move.state == "prepared":
        if not source_is_gone:
            raise MoveInDoubt(
                f"only {move.peer} knows whether {move.job} has ended there, or runs there or on another host",
                hint=f"on {move.peer}: crckpt migrate --resume {move.id}; only if that host is lost forever, and "
                f"{move.job} runs on no other host, here: crckpt migrate --resume {move.id} --source-is-gone",
            )
        step("move.committed")
        move = store_move(repository.backend, advance(move, "committed"))
    return _restore_here(store_move(repository.backend, take_over(move)), repository, context)


def _restore_here(move: Move, repository: Repository, context: Context) -> ResumeResult:
    with ExitStack() as stack:
        guard: GuardedAddresses | None = None
        assert move.checkpoint is not None
        if addresses := recorded.give_up_left_addresses(move):
            claimed = recorded.claimed_addresses(addresses, move.id, repository.get(move.checkpoint))
            guard = stack.enter_context(claimed)

        def let_run(root: int, criu: int) -> AfterCommit:
            nonlocal move
            live = recorded.expect_built(root, criu, guard)
            move = store_move(repository.backend, replace(move, root=live))

            def release() -> None:
                recorded.release_or_explain(guard, live)

            return release

        if not repository.backend.exists(checkpoint_directory(move.checkpoint)):
            raise MoveInDoubt(
                f"not all of the memory of {move.job} arrived before the connection was lost; its checkpoint is on "
                f"{move.peer}",
                hint=f"on {move.peer}: crckpt migrate --resume {move.id}",
            )
        request = recorded.make_restore_request(move.checkpoint, msgspec.convert(move.options, messages.RestoreOptions))
        result = restore(request, context, before_run=let_run)
        if guard is not None:
            guard.keep()
    move = store_move(repository.backend, advance(move, "done"))
    return ResumeResult(move, True, result.pid, result.holder.log if result.holder is not None else "")


def settle_moves(repository: Repository, peer: Peer, job: JobName) -> None:
    """Report all aborted moves to the host and the store of `peer`, before `job` is moved there.

    Raises PreflightRefused if the job is being moved, StoreUnusable if nobody can know; and what `report_abort` raises
    of a move of this job.
    """
    last = read_move(repository.backend, job)
    if last is not None and not (now := last.judge()).is_over:
        direction = f"to {now.peer}" if now.side == "source" else f"here from {now.peer}"
        message, hint = f"crckpt (PID {now.owner.pid}) is moving {job} {direction}", "wait until it ends"
        if not now.owner.is_alive:
            message = f"an earlier move of {job} {direction} is unfinished"
            hint = f"finish it first: crckpt migrate --resume {now.id}"
        raise PreflightRefused(message, hint=hint, is_in_use=True)
    for move in read_all_moves(repository.backend)[0]:
        now = move.judge()
        # Only ssh knows whom it has reached: a host could claim that it has the store of another one.
        if now.is_unreported and now.peer == peer.host and now.peer_store == peer.hello.store:
            try:
                report_abort(repository, peer, now)
            except CrckptError:
                # Of other jobs: `crckpt migrate --list` shows them.
                if now.job == job:
                    raise


def report_abort(repository: Repository, peer: Peer, move: Move) -> Move:
    """Report to the destination that a move was aborted here; return the record of that.

    Raises RemoteError if it does not know the move and may be another host, or cannot be told now. Raises MoveInDoubt
    if the tree was restored there, because its user said that this host was gone.
    """
    connection, is_same_store = peer.connection, move.peer_store == peer.hello.store
    connection.send(messages.Resume(move.id, move.job if is_same_store else None))
    there = connection.receive(messages.MoveState)
    match find_report_step(there.state, is_same_store=is_same_store):
        case "runs-there" if not there.has_ended:
            raise MoveInDoubt(
                f"{move.job} was restored on {move.peer} (--source-is-gone), although its move was aborted here: it "
                "may run on both hosts",
                hint=f"end one of the two; when the one on {move.peer} has ended: crckpt migrate --resume {move.id}",
            )
        case "abort":
            connection.send(messages.Abort(move.why))
            connection.receive(messages.Aborted)
        case "unknown":
            raise RemoteError(
                f"{peer.hello.hostname} does not know the move {move.id} of {move.job} to {move.peer}: it is another "
                "host, or has another store",
                hint=explain_unreported(repository, move),
            )
    return mark_reported(repository.backend, move)


def explain_unreported(repository: Repository, move: Move) -> str:
    """Explain when the destination can be told, and what to do if it never can."""
    name = unreported_name(move.id) if move.is_replaced else move_name(move.job)
    return (
        f"when {move.peer} can be reached again: crckpt migrate --resume {move.id}; if it is lost forever, remove the "
        f"file {repository.backend.location}/{name}"
    )
