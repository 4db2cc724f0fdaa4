"""Report aborted moves to their destinations, which may keep a tree in doubt until they know.

The source's word is the only one that ends the doubt without a guess. So it is owed to the host to which the move went,
and to no other one, whatever happens with the job: a later move to another host does not wait for it.
"""

from __future__ import annotations

from crckpt.errors import CrckptError, MoveInDoubt, PreflightRefused, RemoteError
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.model import JobName
from crckpt.store import Repository
from crckpt.store.layout import move_name, unreported_name
from crckpt.store.move_states import find_report_step
from crckpt.store.moves import Move, mark_reported, read_all_moves, read_move


def settle_moves(
    repository: Repository, connection: Connection, hello: messages.Hello, host: str, job: JobName
) -> None:
    """Report all aborted moves to `host`, and to the store of this connection to it, before `job` is moved there.

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
        if now.is_unreported and now.peer == host and now.peer_store == hello.store:
            try:
                report_abort(repository, connection, hello, now)
            except CrckptError:
                # Of other jobs: `crckpt migrate --list` shows them.
                if now.job == job:
                    raise


def report_abort(repository: Repository, connection: Connection, hello: messages.Hello, move: Move) -> Move:
    """Report to the destination that a move was aborted here; return the record of that.

    Raises RemoteError if it does not know the move and may be another host, or cannot be told now. Raises MoveInDoubt
    if the tree was restored there, because its user said that this host was gone.
    """
    is_same_store = move.peer_store == hello.store
    connection.send(messages.Resume(move.id, move.job if is_same_store else None))
    there = connection.receive(messages.MoveState)
    match find_report_step(there.state, is_same_store=is_same_store):
        case "runs-there" if not there.has_ended:
            raise MoveInDoubt(
                f"{move.job} was restored on {move.peer} (--source-is-gone), although its move was aborted here: it "
                "may run on both hosts",
                hint=f"end one of the two; when that on {move.peer} has ended: crckpt migrate --resume {move.id}",
            )
        case "abort":
            connection.send(messages.Abort(move.why))
            connection.receive(messages.Aborted)
        case "unknown":
            raise RemoteError(
                f"{hello.hostname} does not know the move {move.id} of {move.job} to {move.peer}: it is another host, "
                "or has another store",
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
