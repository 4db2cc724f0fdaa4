"""Remove checkpoints. `crckpt.store.upkeep.gc` then removes the packs that no checkpoint names."""

from __future__ import annotations

from collections.abc import Iterable

from crckpt.model import CheckpointId
from crckpt.store.backend.protocol import Backend
from crckpt.store.layout import checkpoint_directory
from crckpt.store.refs import read_tags, remove_tag
from crckpt.store.restored import remove_mark


def remove_checkpoints(backend: Backend, ids: Iterable[CheckpointId]) -> None:
    """Remove checkpoints and the tags that name them; `collect_garbage` removes their packs. Needs the lock alone."""
    doomed = tuple(dict.fromkeys(ids))
    for tag in read_tags(backend):
        if tag.id in doomed:
            remove_tag(backend, tag.job, tag.name)
    for checkpoint_id in doomed:
        remove_mark(backend, checkpoint_id)
    backend.remove_at_once(map(checkpoint_directory, doomed), "doomed")
