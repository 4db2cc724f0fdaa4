"""Terminals."""

from __future__ import annotations

import pytest
from image_trees import one

from crckpt.images import magics, tty
from crckpt.images.tree import ImageTree
from crckpt.images.wire import BYTES, VARINT


def test_terminals_are_read_from_the_image(tree: ImageTree) -> None:
    assert {file.path for file in tree.files if isinstance(file, tty.Terminal)} == {"/dev/ptmx", "/dev/pts/0"}
    assert {(end.kind, end.index, end.is_master) for end in tree.terminals} == {("pty", 0, True), ("pty", 0, False)}


@pytest.mark.parametrize(
    ("session", "group", "now"),
    [(7, 9, 7), (7, 8, 8), (7, 7, 7), (5, 9, 9), (0, 0, 0)],
    ids=["ended", "another", "of the leader", "of a session outside", "of no session"],
)
def test_terminal_without_a_foreground_group_goes_to_the_leader(session: int, group: int, now: int) -> None:
    numbers = ((1, VARINT, 4), (2, VARINT, 1), (6, VARINT, session), (7, VARINT, group))
    image = one(magics.TTY_INFO, *numbers, (12, BYTES, b"\x08\x02"))
    (found,) = tty.read_terminals(tty.replace_ended_groups(image, {7, 8}))
    assert (found.session, found.group) == (session, now)
