"""Records of restored trees: which job runs where, also in a PID namespace that crckpt made. Useless after a boot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.host import proc
from crckpt.host.disk.files import rename, runtime_directory, write_unsynced
from crckpt.host.disk.runtime_directory import make_runtime_directory


class RestoredTree(Struct, frozen=True):
    """A restored tree.

    - `root`: its root, as crckpt saw it
    - `store`, `job`, `checkpoint`: the id of the store, and what was restored
    - `program`: the child of crckpt or of the holder that ends with the tree: the root, or what made its PID namespace
    - `holder`: the PID of the holder of its new terminal; 0 without one
    """

    root: proc.LiveRoot
    store: str
    job: str
    checkpoint: str
    program: int
    holder: int = 0


_DECODER: Final = msgspec.json.Decoder(RestoredTree)


def record_restored(tree: RestoredTree) -> None:
    """Record a tree that is about to run. Raises OSError."""
    path = _directory() / tree.root.name
    make_runtime_directory(path)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    write_unsynced(new, msgspec.json.encode(tree), "restored")
    rename(new, path, "restored")


def find_restored_trees() -> Iterator[tuple[RestoredTree, proc.Process]]:
    """Find the restored trees that run, each with its root. Records of those that have ended are removed."""
    with suppress(FileNotFoundError):
        for path in sorted(_directory().iterdir()):
            with suppress(OSError, msgspec.DecodeError):
                tree = _DECODER.decode(path.read_bytes())
                if (root := tree.root.find()) is not None:
                    yield tree, root
                elif tree.root.has_ended():
                    path.unlink()


def find_root_behind(pid: int) -> int:
    """Return the root of the restored tree for which process `pid` of crckpt stays; or `pid`."""
    for tree, root in find_restored_trees():
        if pid in _find_helpers(tree, root):
            return root.pid
    return pid


def is_restore(pid: int) -> bool:
    """Return whether a process is a `crckpt restore`."""
    # Once crckpt has ended, any process may have adopted the holder.
    words = proc.command_line(pid)
    return "restore" in words and any(Path(word).name == "crckpt" for word in words)


def _find_helpers(tree: RestoredTree, root: proc.Process) -> tuple[int, ...]:
    """Find the init of its namespace and the parent of that, the holder, and a restore in the foreground."""
    above = proc.ancestors(root.pid)
    count = above.index(tree.program) + 1 if tree.program in above else 0
    if above[count : count + 1] == (tree.holder,):
        count += 1
    if len(above) > count and is_restore(above[count]):
        count += 1
    return above[:count]


def _directory() -> Path:
    return runtime_directory() / "restored"
