"""Refuse the restore of a program that another host has, or may get: two copies must never run."""

from __future__ import annotations

from contextlib import suppress

from crckpt.errors import CrckptError, PreflightRefused
from crckpt.ops.restore.request import RestoreRequest
from crckpt.store import Checkpoint, Repository
from crckpt.store.move_status import MoveStatus, find_moved, find_status
from crckpt.store.moves import read_move, remove_move


def refuse_moved(repository: Repository, checkpoint: Checkpoint, request: RestoreRequest) -> None:
    """Raise PreflightRefused if the job is being moved, or was moved to another host since the checkpoint was made.

    Raises StoreUnusable if that is unknown, because the record cannot be read.
    """
    move = read_move(repository.backend, checkpoint.job)
    if move is None:
        return
    status = find_status(move)
    if not status.prevents_restore(checkpoint, find_moved(repository, status.move)):
        return
    if status.move.forbids_restore:
        raise _refuse_unfinished(status)
    if not request.despite_move:
        raise _refuse_finished(status, request.ref)


def forget_move(repository: Repository, checkpoint: Checkpoint) -> None:
    """Remove the record that the job was moved away: it runs here again."""
    with suppress(CrckptError, OSError):
        remove_move(repository.backend, checkpoint.job)


def _refuse_unfinished(status: MoveStatus) -> PreflightRefused:
    move = status.move
    direction = f"to {move.peer}" if move.side == "source" else f"here from {move.peer}"
    if status.crckpt_pid is not None:
        hint = f"wait until crckpt (PID {status.crckpt_pid}) has moved it"
    elif status.next_on in (None, move.side):
        hint = f"finish the move: {status.next_command}"
    else:
        hint = f"finish the move, on {move.peer}: {status.next_command}"
    state = "is being moved" if status.crckpt_pid is not None else "has an unfinished move"
    return PreflightRefused(
        f"{move.job} {state} {direction}: a restore could start a second copy", hint=hint, is_in_use=True
    )


def _refuse_finished(status: MoveStatus, ref: str) -> PreflightRefused:
    move = status.move
    when = f"{move.changed:%Y-%m-%d %H:%M:%S} UTC"
    if move.side == "source":
        message = f"{move.job} was moved to {move.peer} ({when}), and may still run there"
    else:
        message = f"a move of {move.job} from {move.peer} was aborted ({when}), and it may still run there"
    return PreflightRefused(
        message, hint=f"if it no longer runs there: crckpt restore {ref} --despite-move", is_in_use=True
    )
