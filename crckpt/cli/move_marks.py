"""A recorded move, as `list`, `show` and `migrate` print it."""

from __future__ import annotations

from crckpt.cli.output import pick
from crckpt.store.move_status import MoveStatus


def describe_move(status: MoveStatus) -> str:
    """Describe a move in a few words."""
    move = status.move
    if move.is_over:
        return f"moved to {move.peer}" if move.side == "source" else f"runs on {move.peer}"
    direction = f"to {move.peer}" if move.side == "source" else f"here from {move.peer}"
    return f"being moved {direction}" if status.crckpt_pid is not None else f"unfinished move {direction}"


def move_document(status: MoveStatus) -> dict[str, object]:
    """The document of a recorded move."""
    return {
        **pick(status.move, "id", "job", "side", "peer", "state", "is_over", "checkpoint", "began", "changed", "why"),
        **pick(status, "runs_on", "crckpt_pid", "next_on", "next_command"),
    }
