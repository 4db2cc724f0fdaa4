"""Other names of a file in its directory, which may belong to another user."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from crckpt.errors import RestoreFailed
from crckpt.host.disk.rewind import linked_again
from crckpt.host.observe.files import OtherNames


def test_other_name_of_a_removed_file_is_found_by_inode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    inode = file.stat().st_ino
    assert OtherNames().find(f"{tmp_path}/gone", {inode, 5}) == "file"
    assert OtherNames().find(f"{tmp_path}/gone", {inode + 1}) == ""
    assert OtherNames().find(f"{tmp_path}/nowhere/gone", {inode}) == ""


def test_link_to_a_removed_file_stays_unless_the_block_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    link, inode = tmp_path / "link", (tmp_path / "file").stat().st_ino
    with pytest.raises(FileNotFoundError), linked_again(link, "file", inode, os.getuid()):
        link.rename(tmp_path / "nowhere/link")
    assert not link.exists()
    with linked_again(link, "file", inode, os.getuid()):
        pass
    assert link.read_text() == "content"
    with pytest.raises(RestoreFailed, match="cannot be linked to file"), linked_again(link, "file", inode, os.getuid()):
        pass


@pytest.mark.parametrize("other", [(1, 0), (0, 1)])
def test_file_of_another_user_with_the_same_inode_is_not_linked(tmp_path: Path, other: tuple[int, int]) -> None:
    """The inode of a removed file is given to a new one, which in a directory like /tmp may be root's."""
    (tmp_path / "file").touch()
    found = (tmp_path / "file").stat()
    with (
        pytest.raises(RestoreFailed, match="replaced"),
        linked_again(tmp_path / "link", "file", found.st_ino + other[0], found.st_uid + other[1]),
    ):
        pass
    assert not (tmp_path / "link").exists()


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    """The owner of the directory could have created the link."""
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots/secret").touch()
    (tmp_path / "file").symlink_to("roots/secret")
    (tmp_path / "to-roots").symlink_to("roots")
    for path, name in (("link", "file"), ("to-roots/link", "secret")):
        with (
            pytest.raises(RestoreFailed),
            linked_again(tmp_path / path, name, (tmp_path / "roots/secret").stat().st_ino, os.getuid()),
        ):
            pass
    assert [path.name for path in (tmp_path / "roots").iterdir()] == ["secret"]


def test_many_removed_files_are_linked_with_few_descriptors(tmp_path: Path) -> None:
    """A program may have any number of removed files."""
    (tmp_path / "file").touch()
    inode, names = (tmp_path / "file").stat().st_ino, [tmp_path / f"link{number}" for number in range(100)]
    had, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 20, most))
    try:
        stack = ExitStack()
        for name in names:
            stack.enter_context(linked_again(name, "file", inode, os.getuid()))
        assert all(name.exists() for name in names)
        failure = RuntimeError()
        assert not stack.__exit__(RuntimeError, failure, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (had, most))
    assert not any(name.exists() for name in names)
