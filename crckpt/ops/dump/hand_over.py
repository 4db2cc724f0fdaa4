"""What a dump that ends the tree does for a move: its steps while the tree is held frozen, and after it has ended."""

from __future__ import annotations

from typing import Protocol

from crckpt.host import proc
from crckpt.store import Checkpoint


class HandOver(Protocol):
    """The hand-over of a tree to another host. Before `decide` returns, an exception lets the tree continue here."""

    @property
    def at_least(self) -> int:
        """The lowest `sequence` that the checkpoint may have: above all of the other store."""

    def begin(self, tree: proc.Tree, frozen_since: float) -> None:
        """Begin: the images are written. The tree was frozen at `frozen_since` (time.monotonic())."""

    def prepare(self, checkpoint: Checkpoint, manifest: bytes) -> None:
        """Have the tree built and held on the other host. The packs are stored here, the manifest is not."""

    def decide(self) -> None:
        """Record that the commit comes next: if the hold takes it, the tree ends."""

    def end(self) -> None:
        """Let the tree run on the other host: it has ended here. Raises nothing that would hide the dump's result."""
