"""Check the namespaces of a checkpoint before a restore."""

from __future__ import annotations

from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.images.tree import ImageTree


def find_blockers(tree: ImageTree) -> Iterator[Finding]:
    """Find processes that were dumped in another user namespace than CRIU's."""
    # These are CRIU's own numbers, not inodes, so they can be compared on any host. A zombie has none.
    outside = tree.inventory.root_ids.namespaces.user
    for process in tree.processes:
        if process.ids is not None and process.ids.namespaces.user != outside:
            yield cause("user-namespace-recorded").finding(pid=process.pid, comm=process.comm)
