"""Other names of a file in its directory, which may belong to another user."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.errors import RestoreFailed
from crckpt.host.disk.other_names import find_other_name, linked_again


def test_a_name_is_found_by_the_inode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    inode = file.stat().st_ino
    assert find_other_name(f"{tmp_path}/gone", {inode, 5}) == "file"
    assert find_other_name(f"{tmp_path}/gone", {inode + 1}) == ""
    assert find_other_name(f"{tmp_path}/nowhere/gone", {inode}) == ""


def test_the_link_stays_unless_the_block_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    link = tmp_path / "link"
    with pytest.raises(FileNotFoundError), linked_again(link, "file"):
        link.rename(tmp_path / "nowhere/link")
    assert not link.exists()
    with linked_again(link, "file"):
        pass
    assert link.read_text() == "content"
    with pytest.raises(RestoreFailed, match="cannot be linked to file"), linked_again(link, "file"):
        pass


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    """The directory's user could have put it there."""
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots/secret").touch()
    (tmp_path / "file").symlink_to("roots/secret")
    (tmp_path / "to-roots").symlink_to("roots")
    for path, name in (("link", "file"), ("to-roots/link", "secret")):
        with pytest.raises(RestoreFailed), linked_again(tmp_path / path, name):
            pass
    assert [path.name for path in (tmp_path / "roots").iterdir()] == ["secret"]
