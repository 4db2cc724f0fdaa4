"""Records of restored trees: which job runs where, also in a PID namespace that crckpt made. Useless after a boot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.host import proc
from crckpt.host.disk.files import rename, write_unsynced
from crckpt.host.disk.own_files import make_runtime_directory, runtime_directory
from crckpt.model import CheckpointId, JobName, StoreId


class RestoredTree(Struct, frozen=True):
    """A restored tree.

    - `root`: its root, as crckpt saw it
    - `store`, `job`, `checkpoint`: the id of the store, and what was restored
    - `helpers`: the processes of crckpt that stay for the tree: the init of its PID namespace and what made that, the
      holder of its terminal, and a restore in the foreground
    """

    root: proc.LiveRoot
    store: StoreId
    job: JobName
    checkpoint: CheckpointId
    helpers: tuple[proc.Identity, ...] = ()


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
    helper = proc.identify(pid)
    return next((root.pid for tree, root in find_restored_trees() if helper in tree.helpers), pid)


def _directory() -> Path:
    return runtime_directory() / "restored"
