"""Refuse the restore of a program that another host has, or may get: two copies must never run."""

from __future__ import annotations

from contextlib import suppress

from crckpt.errors import CrckptError, PreflightRefused
from crckpt.ops.restore.request import RestoreRequest
from crckpt.store import Checkpoint, Repository
from crckpt.store.moves import Move, read_move, remove_move


def refuse_moved(repository: Repository, checkpoint: Checkpoint, request: RestoreRequest) -> None:
    """Raise PreflightRefused if the job is being moved, or was moved to another host since the checkpoint was made.

    Raises StoreUnusable if nobody can know.
    """
    move = read_move(repository.backend, checkpoint.job)
    if move is None:
        return
    move = move.judge()
    if move.fences:
        raise PreflightRefused(
            f"{move.job} is being moved {_towards(move)}: a second copy of it could run",
            hint=f"finish the move: crckpt migrate --resume {move.id}",
            is_in_use=True,
        )
    if request.despite_move or not move.leaves_it_there or not _is_older(repository, checkpoint, move):
        return
    left = (
        f"moved to {move.peer}" if move.side == "source" else f"left on {move.peer} when a move from there was given up"
    )
    raise PreflightRefused(
        f"{move.job} was {left} ({move.changed:%Y-%m-%d %H:%M} UTC), and may run there",
        hint=f"if it no longer runs there: crckpt restore {request.ref} --despite-move",
        is_in_use=True,
    )


def forget_move(repository: Repository, checkpoint: Checkpoint) -> None:
    """Remove the record that the job was moved away: it runs here again."""
    with suppress(CrckptError, OSError):
        remove_move(repository.backend, checkpoint.job)


def _towards(move: Move) -> str:
    return f"to {move.peer}" if move.side == "source" else f"here from {move.peer}"


def _is_older(repository: Repository, checkpoint: Checkpoint, move: Move) -> bool:
    """Return whether the checkpoint was made up to the move. Later ones are of a program that ran here again."""
    if move.checkpoint is None:
        return True
    try:
        moved = repository.get(move.checkpoint)
    except CrckptError:  # it was removed, or is damaged
        return checkpoint.created <= move.changed
    return checkpoint.order <= moved.order
