"""The meaning of a move's record for the user: where the tree runs, and which command comes next."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.errors import CrckptError
from crckpt.model import CheckpointId, Pid
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.move_states import Side, State
from crckpt.store.moves import Move, read_last_moves
from crckpt.store.repository import Repository


class MoveStatus(Struct, frozen=True):
    """The status of a move.

    - `move`: its record, judged
    - `runs_on`: the side that has the tree; None if neither runs it, or if this side does not know. The tree may have
      ended since; `has_ended`: it surely has, on this side
    - `crckpt_pid`: the PID of the crckpt of this side that works on the move; None if none does
    - `next_on`, `next_command`: what to type, and on which side; None and empty if there is nothing to do
    """

    move: Move
    runs_on: Side | None
    crckpt_pid: Pid | None
    next_on: Side | None
    next_command: str
    has_ended: bool = False

    def prevents_restore(self, checkpoint: Checkpoint, moved: Checkpoint | None) -> bool:
        """Return whether a restore of this checkpoint of the job could be a second copy of the tree.

        `moved` is what `find_moved` returns.
        """
        return self.move.forbids_restore or (self.move.leaves_tree_with_peer and self.includes(checkpoint, moved))

    def includes(self, checkpoint: Checkpoint, moved: Checkpoint | None) -> bool:
        """Return whether the checkpoint was made up to the move. Later ones are of a program that ran here again."""
        if self.move.checkpoint is None:
            return True
        if moved is None:
            return checkpoint.created <= self.move.changed
        return checkpoint.order <= moved.order


def find_moved(repository: Repository, move: Move) -> Checkpoint | None:
    """Find the checkpoint that was moved; None if there is none, or if it was removed or is damaged."""
    with suppress(CrckptError, OSError):
        return repository.get(move.checkpoint) if move.checkpoint is not None else None
    return None


def find_marks(repository: Repository, checkpoints: Iterable[Checkpoint]) -> dict[CheckpointId, MoveStatus]:
    """Find the checkpoints whose job is being moved, or which were moved away, and the status of that move."""
    found, _ = read_last_moves(repository.backend)
    moves = {move.job: (find_status(move), find_moved(repository, move)) for move in found}
    marks = {}
    # Most stores know no move.
    for checkpoint in checkpoints if moves else ():
        status, moved = moves.get(checkpoint.job, (None, None))
        if status is not None and (not status.move.is_over or status.prevents_restore(checkpoint, moved)):
            marks[checkpoint.id] = status
    return marks


def find_status(move: Move) -> MoveStatus:
    """Judge a move by its record and by the processes of this host."""
    now = move.judge()
    crckpt_pid = now.owner.pid if not now.is_over and now.owner.is_alive else None
    next_on = None if crckpt_pid is not None else _NEXT_ON[now.side].get(now.state)
    if now.is_unreported:
        # The destination still keeps what it received.
        next_on = "source"
    runs_on = _RUNS_ON[now.side].get(now.state) if not now.is_replaced else None
    return MoveStatus(
        move=now,
        runs_on=runs_on,
        crckpt_pid=crckpt_pid,
        next_on=next_on,
        next_command=f"crckpt migrate --resume {now.id}" if next_on is not None else "",
        has_ended=runs_on == now.side and now.root is not None and now.root.has_ended(),
    )


_RUNS_ON: Final[dict[Side, dict[State, Side]]] = {
    "source": {"copying": "source", "aborted": "source", "done": "destination"},
    "destination": {"receiving": "source", "aborted": "source", "done": "destination"},
}
_NEXT_ON: Final[dict[Side, dict[State, Side]]] = {
    "source": {"committing": "source", "ended": "source"},
    # What is prepared runs here only if the tree has ended at the source.
    "destination": {"prepared": "source", "committed": "destination"},
}
