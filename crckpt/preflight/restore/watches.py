"""Check what a checkpoint watches (inotify, fanotify) before a restore."""

from __future__ import annotations

from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.images.other_files import Watch
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.host import HostState


def find_watched_paths(tree: ImageTree) -> tuple[str, ...]:
    """Return the paths that a restore watches again. None for a tree that brings its own mount namespace."""
    if tree.is_apart("mnt"):
        return ()
    return tuple(dict.fromkeys(path for file in tree.files if isinstance(file, Watch) for path in file.paths))


def find_blockers(tree: ImageTree, host: HostState) -> Iterator[Finding]:
    """Find watched paths that are missing."""
    yield from (cause("watch-gone").finding(path=path) for path in find_watched_paths(tree) if path in host.unwatched)
