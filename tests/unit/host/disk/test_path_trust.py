"""Users who can change the target of a path."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_user import NOBODY
from own_process import descriptors
from trees import open_workdir

from crckpt.host.disk.path_trust import Changers, find_changers, find_intruder_on, open_path, read_small

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
NONE: frozenset[int] = frozenset()


@pytest.fixture
def trusted_directory() -> Iterator[Path]:
    """A directory that only root can change, below one for everybody."""
    with open_workdir() as workdir:
        workdir.chmod(0o755)
        yield workdir


def test_path_that_only_root_can_change_is_trusted(trusted_directory: Path) -> None:
    (trusted_directory / "file").touch(0o644)
    assert find_intruder_on(trusted_directory / "file", NONE) == ""
    assert find_changers(trusted_directory) == Changers()
    assert not find_changers(trusted_directory)


def test_owner_of_a_file_must_be_root_or_trusted(trusted_directory: Path) -> None:
    (trusted_directory / "file").touch(0o644)
    os.chown(trusted_directory / "file", NOBODY, 0)
    assert find_intruder_on(trusted_directory / "file", NONE) == f"{trusted_directory}/file belongs to user nobody"
    assert find_intruder_on(trusted_directory / "file", frozenset({NOBODY})) == ""
    os.chown(trusted_directory / "file", 4242, 0)
    assert find_intruder_on(trusted_directory / "file", NONE) == f"{trusted_directory}/file belongs to user 4242"


def test_path_in_a_directory_that_everybody_can_write_is_not_trusted(trusted_directory: Path) -> None:
    (trusted_directory / "open").mkdir()
    (trusted_directory / "open").chmod(0o777)
    (trusted_directory / "open/file").touch(0o644)
    assert (
        find_intruder_on(trusted_directory / "open/file", NONE) == f"every user can write to {trusted_directory}/open"
    )
    assert find_changers(trusted_directory / "open") == Changers(anyone=True)
    (trusted_directory / "open").chmod(0o1777)
    assert find_intruder_on(trusted_directory / "open/file", NONE) == "", "in a sticky one the owner of the file counts"
    assert find_changers(trusted_directory / "open") == Changers(anyone=True), "but anybody can make a new one"


def test_group_that_can_write_a_path_must_have_only_trusted_members(trusted_directory: Path) -> None:
    (trusted_directory / "file").touch()
    (trusted_directory / "file").chmod(0o664)
    os.chown(trusted_directory / "file", 0, 4242)
    assert find_intruder_on(trusted_directory / "file", NONE) == f"the group 4242 can write to {trusted_directory}/file"
    os.chown(trusted_directory / "file", 0, 0)
    assert find_intruder_on(trusted_directory / "file", NONE) == ""


def test_link_on_a_path_and_its_target_must_both_be_trusted(trusted_directory: Path) -> None:
    (trusted_directory / "real").mkdir()
    (trusted_directory / "real/file").write_text("content")
    (trusted_directory / "link").symlink_to("real")
    (trusted_directory / "again").symlink_to(f"{trusted_directory}/link/file")
    descriptor, entries = open_path(trusted_directory / "again")
    names = [entry.path for entry in entries if entry.path.is_relative_to(trusted_directory)]
    assert names == [
        trusted_directory,
        trusted_directory / "again",
        trusted_directory,
        trusted_directory / "link",
        trusted_directory / "real",
        trusted_directory / "real/file",
    ]
    assert read_small(descriptor, 4) == b"cont"
    os.close(descriptor)
    os.lchown(trusted_directory / "link", NOBODY, NOBODY)
    assert find_intruder_on(trusted_directory / "again", NONE) == f"{trusted_directory}/link belongs to user nobody"


def test_path_with_endless_links_is_not_trusted(trusted_directory: Path) -> None:
    (trusted_directory / "one").symlink_to("other")
    (trusted_directory / "other").symlink_to("one")
    before = descriptors()
    with pytest.raises(OSError, match="one") as caught:
        open_path(trusted_directory / "one")
    assert caught.value.errno == errno.ELOOP
    assert descriptors() == before


@pytest.mark.parametrize(("kind", "number"), [("directory", errno.EISDIR), ("fifo", errno.EINVAL)])
def test_file_on_a_trusted_path_is_read_only_if_it_is_regular(trusted_directory: Path, kind: str, number: int) -> None:
    path = trusted_directory / "x"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    descriptor, _ = open_path(path)
    with pytest.raises(OSError, match=r"directory|file") as caught:
        read_small(descriptor, 10)
    assert caught.value.errno == number
    os.close(descriptor)


def test_directory_that_is_missing_may_belong_to_anyone(trusted_directory: Path) -> None:
    assert find_changers(trusted_directory / "none") == Changers(anyone=True)
