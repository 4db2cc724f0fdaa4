"""Names of what is in the store: jobs, tags, ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.cli.format import local_time
from crckpt.errors import CrckptError
from crckpt.model import CheckpointId, JobName
from crckpt.store import Checkpoint, Repository, Tag
from crckpt.store.layout import checkpoint_directory
from crckpt.store.move_status import find_status
from crckpt.store.moves import Move, read_all_moves
from crckpt.store.refs import RefTargets, resolve

# A store may have ten thousand checkpoints, and to read them takes a second.
_LIMIT_S: Final = 0.3
_SHORT: Final = 12


class StoredNames:
    """The newest checkpoints of a store, as many as can be read in a moment, and its tags. Nothing if it is not one."""

    def __init__(self, store: Path) -> None:
        self._tags: tuple[Tag, ...] = ()
        self._checkpoints: list[Checkpoint] = []
        self._moves: tuple[Move, ...] = ()
        with suppress(OSError, CrckptError):
            repository = Repository.open(store)
            self._tags = repository.tags()
            self._moves, _ = read_all_moves(repository.backend)
            self._checkpoints = sorted(_read_newest(repository), key=lambda checkpoint: checkpoint.order)

    def jobs(self) -> Iterator[tuple[str, str]]:
        """Name the jobs, and when each got its newest checkpoint."""
        newest = {checkpoint.job: checkpoint for checkpoint in self._checkpoints}
        return ((job, f"newest of {local_time(newest[job].created)}") for job in sorted(newest))

    def refs(self, typed: str) -> Iterator[tuple[str, str]]:
        """Name the jobs, `job:tag`, and ids: these only if their first digits are typed, because there are many."""
        yield from self.jobs()
        made = {checkpoint.id: checkpoint for checkpoint in self._checkpoints}
        for tag in self._tags:
            yield f"{tag.job}:{tag.name}", f"of {local_time(made[tag.id].created)}" if tag.id in made else ""
        if typed:
            for checkpoint in reversed(self._checkpoints):
                # A shell keeps only words that begin with what is typed.
                word = checkpoint.id if len(typed) > _SHORT else checkpoint.id[:_SHORT]
                yield word, f"{checkpoint.job} of {local_time(checkpoint.created)}"

    def tags(self, ref: str) -> Iterator[tuple[str, str]]:
        """Name the tags of the job of a ref."""
        found = self._find(ref)
        return ((tag.name, "") for tag in self._tags if found is not None and tag.job == found.job)

    def processes(self, ref: str) -> Iterator[tuple[str, str]]:
        """Name the processes of a checkpoint."""
        found = self._find(ref)
        return ((str(task.pid), task.comm) for task in (found.tree if found is not None else ()))

    def moves(self) -> Iterator[tuple[str, str]]:
        """Name the moves by their ids: those that are unfinished, or all if none is."""
        found = tuple(map(find_status, self._moves))
        unfinished = tuple(status for status in found if status.next_command)
        return ((status.move.id, f"{status.move.job}, {status.move.peer}") for status in unfinished or found)

    def _find(self, ref: str) -> Checkpoint | None:
        jobs: dict[JobName, list[CheckpointId]] = {}
        for checkpoint in self._checkpoints:
            jobs.setdefault(checkpoint.job, []).append(checkpoint.id)
        ids = tuple(checkpoint.id for checkpoint in self._checkpoints)
        with suppress(CrckptError):
            wanted = resolve(ref, RefTargets(jobs, ids, self._tags))
            return next(checkpoint for checkpoint in self._checkpoints if checkpoint.id == wanted)
        return None


def _read_newest(repository: Repository) -> Iterator[Checkpoint]:
    """Read manifests, the newest first, for a moment."""
    ends = time.monotonic() + _LIMIT_S
    written: list[tuple[int, CheckpointId]] = []
    for checkpoint_id in repository.ids():
        with suppress(OSError):
            # The time of the directory is about that of the checkpoint, and needs no manifest to be read.
            status = (repository.root / checkpoint_directory(checkpoint_id)).stat()
            written.append((status.st_mtime_ns, checkpoint_id))
    for _, checkpoint_id in sorted(written, reverse=True):
        if time.monotonic() > ends:
            return
        with suppress(OSError, CrckptError):
            yield repository.get(checkpoint_id)
