"""Terminals."""

from __future__ import annotations

from crckpt.images import tty
from crckpt.images.tree import ImageTree


def test_terminals(tree: ImageTree) -> None:
    assert {file.path for file in tree.files if isinstance(file, tty.Terminal)} == {"/dev/ptmx", "/dev/pts/0"}
    assert {(end.kind, end.index, end.is_master) for end in tree.terminals} == {("pty", 0, True), ("pty", 0, False)}
