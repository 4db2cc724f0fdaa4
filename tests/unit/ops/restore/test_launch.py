"""The rights with which CRIU creates the objects of a program."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from crckpt.errors import RestoreFailed
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.launch import create_holders, write_holders


def test_tree_with_more_groups_than_the_table_holds_is_not_restored(tmp_path: Path, tree: ImageTree) -> None:
    """Processes that are missing in the table would get everything from root."""
    first = next(process for process in tree.processes if process.core.rights is not None)
    assert first.core.rights is not None
    rights = replace(first.core.rights, uids=(1234,) * 4, groups=frozenset(range(65536)))
    thread = replace(first.threads[0], core=replace(first.core, rights=rights))
    user = replace(first, threads=(thread, *first.threads[1:]))
    create_holders(tmp_path / "holders")
    write_holders(tmp_path / "holders", replace(tree, processes=(user,)))
    with pytest.raises(RestoreFailed, match="too many groups"):
        write_holders(tmp_path / "holders", replace(tree, processes=(user,) * 260))
