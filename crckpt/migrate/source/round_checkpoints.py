"""The checkpoints of a move's rounds: the user finds them in the list only if a move has failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from crckpt.errors import CrckptError, Interrupted
from crckpt.migrate.source.hand_over import SourceMove
from crckpt.model import CheckpointId, JobName
from crckpt.store import Repository
from crckpt.store.layout import manifest_name

# Seconds.
_REMOVED_WITHIN_S: Final = 1.0

_NOTE: Final = re.compile(r"move to .+, round \d+")


def make_note(host: str, number: int) -> str:
    """Make the note of a round's checkpoint: `crckpt list` shows it."""
    return f"move to {host}, round {number}"


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
            rounds = _find_rounds(repository, source.move.job)
            repository.remove(rounds if is_stored else rounds[:-1])


def _find_rounds(repository: Repository, job: JobName) -> list[CheckpointId]:
    """Find the checkpoints of rounds that have no tag, oldest first; crckpt may have been killed in earlier moves."""
    tagged = {tag.id for tag in repository.tags()}
    return [
        checkpoint.id
        for checkpoint in repository.checkpoints(job)
        if checkpoint.id not in tagged and _NOTE.fullmatch(checkpoint.note or "")
    ]
