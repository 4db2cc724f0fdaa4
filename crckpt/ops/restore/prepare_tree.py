"""Complete a tree that CRIU has built, for a restore and for a rehearsal alike."""

from __future__ import annotations

from crckpt.causes import Finding
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.attributes import AttributeRestore
from crckpt.ops.restore.images import ImageStreams, fill_memory
from crckpt.ops.restore.open_files import RecordedFiles, check_open_files


def prepare_tree(
    tree: ImageTree,
    init: int | None,
    streams: ImageStreams | None,
    recorded: RecordedFiles,
    attributes: AttributeRestore,
    *,
    allow_weaker: bool,
) -> tuple[Finding, ...]:
    """In the hold: fill the memory of a tree, check its open files, set its attributes, and return what was lost.

    The tree is in our PID namespace, or in that of the process `init`. Raises RestoreFailed, IntegrityError, OSError if
    it must not run.
    """
    fill_memory(tree, init, streams)
    weaker = check_open_files(tree, recorded, init, allow_weaker=allow_weaker)
    return (*weaker, *attributes.set_all(init))
