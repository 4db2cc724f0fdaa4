"""What a destination says that has lost the connection to the source, and holds or has ended a tree."""

from __future__ import annotations

from crckpt.errors import MoveInDoubt
from crckpt.migrate.wire.connection_errors import ConnectionLost
from crckpt.store.moves import Move


def explain_loss(move: Move, error: ConnectionLost, *, is_late: bool) -> MoveInDoubt:
    """Explain in which state the move of a tree is. `is_late`: its memory was to be sent while it runs here."""
    if move.state == "committed" and is_late:
        return MoveInDoubt(
            f"{error.message}; {move.job} was ended here, because not all of its memory had arrived",
            hint=f"restore it from its checkpoint: on {move.peer}: crckpt migrate --resume {move.id}",
        )
    if move.state == "committed":
        return MoveInDoubt(
            f"{error.message}; {move.job} has ended on {move.peer}, and its tree could not be restored here",
            hint=f"restore it from its checkpoint here: crckpt migrate --resume {move.id}",
        )
    return MoveInDoubt(
        f"{error.message}; the checkpoint of {move.job} is safe here, and only {move.peer} knows whether its tree "
        "has ended there",
        hint=f"on {move.peer}: crckpt migrate --resume {move.id}",
    )
