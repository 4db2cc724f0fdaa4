"""Remove checkpoints. What nothing names any more is removed by `crckpt.store.upkeep.gc`."""

from __future__ import annotations

from collections.abc import Iterable

from crckpt.host.disk.files import remove_tree, rename, sync_directory
from crckpt.model import CheckpointId
from crckpt.store.layout import Layout
from crckpt.store.refs import read_tags, remove_tag


def remove_checkpoints(layout: Layout, ids: Iterable[CheckpointId]) -> None:
    """Remove checkpoints and the tags that name them; `collect_garbage` removes their packs. Needs the lock alone."""
    gone = tuple(dict.fromkeys(ids))
    for tag in read_tags(layout.tags):
        if tag.id in gone:
            remove_tag(layout.tags, tag.job, tag.name)
    # Nothing is created here: it must work on a full disk. What a crash leaves in tmp has no owner, and gc removes it.
    doomed = [(layout.checkpoints / checkpoint_id, layout.transactions / checkpoint_id) for checkpoint_id in gone]
    for path, aside in doomed:
        rename(path, aside, "doomed")
    # Only that they are gone from here must last: in tmp they may be lost.
    sync_directory(layout.checkpoints, "doomed")
    for _, aside in doomed:
        remove_tree(aside, "doomed")
