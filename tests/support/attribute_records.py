"""Records of attributes, written by hand."""

from __future__ import annotations

from typing import Any

from crckpt.images.tree import ImageTree
from crckpt.preflight.attribute_record import AttributeRecord, ProcessRecord


def of_root(tree: ImageTree, cpus: tuple[int, ...] = (0, 1), **more: Any) -> AttributeRecord:
    """Make a record of the root only."""
    root = tree.root.pid
    groups = more.pop("record_groups", ())
    threads = more.pop("threads", {root: {"affinity": (0,)}})
    return AttributeRecord(cpus, (ProcessRecord(root, threads, **more),), groups)
