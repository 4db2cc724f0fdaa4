"""The checkpoints of a move's rounds: the user finds them in the list only if a move has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec.structs import replace

from crckpt.errors import CrckptError, Interrupted
from crckpt.migrate.source.hand_over import SourceMove
from crckpt.model import CheckpointId, JobName
from crckpt.store import Repository
from crckpt.store.layout import manifest_name
from crckpt.store.moves import MOST_ROUNDS, read_move, store_move

# Seconds.
_REMOVED_WITHIN_S: Final = 1.0


def make_note(host: str, number: int) -> str:
    """Make the note of a round's checkpoint: `crckpt list` shows it."""
    return f"move to {host}, round {number}"


def list_earlier_rounds(repository: Repository, job: JobName) -> tuple[CheckpointId, ...]:
    """List the checkpoints of rounds that the last move of the job has left: it failed, or crckpt was killed."""
    last = read_move(repository.backend, job)
    return last.rounds if last is not None else ()


def record_round(source: SourceMove, checkpoint: CheckpointId) -> None:
    """Record that a checkpoint is of a round: it is removed after the move, or after the next one."""
    rounds = (*source.move.rounds, checkpoint)[-MOST_ROUNDS:]
    source.move = store_move(source.repository.backend, replace(source.move, rounds=rounds))


@contextmanager
def rounds_removed(source: SourceMove) -> Iterator[None]:
    """After the block, remove the checkpoints of rounds of the job's moves: the last one of the move has all of them.

    If that does not exist, the newest round's is kept: the next move counts from it. So are those with a tag.
    """
    try:
        yield
    finally:
        last, repository = source.move.checkpoint, source.repository
        is_stored = last is not None and repository.backend.exists(manifest_name(last))
        # A store in use keeps them: clients may wait.
        with suppress(CrckptError, OSError, Interrupted), repository.exclusive(_REMOVED_WITHIN_S):
            rounds = _find_rounds(source)
            kept = () if is_stored else rounds[-1:]
            repository.remove([found for found in rounds if found not in kept])
            source.move = store_move(repository.backend, replace(source.move, rounds=kept))


def _find_rounds(source: SourceMove) -> tuple[CheckpointId, ...]:
    """Find the checkpoints of rounds that have no tag, oldest first."""
    repository, rounds = source.repository, set(source.move.rounds)
    found = repository.checkpoints(source.move.job) if rounds else ()
    rounds -= {tag.id for tag in repository.tags()}
    return tuple(checkpoint.id for checkpoint in found if checkpoint.id in rounds)
