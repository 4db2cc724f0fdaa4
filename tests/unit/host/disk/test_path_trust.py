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
def place() -> Iterator[Path]:
    """A directory that only root can change, below one for everybody."""
    with open_workdir() as workdir:
        workdir.chmod(0o755)
        yield workdir


def test_path_that_only_root_can_change_is_trusted(place: Path) -> None:
    (place / "file").touch(0o644)
    assert find_intruder_on(place / "file", NONE) == ""
    assert find_changers(place) == Changers()
    assert not find_changers(place)


def test_owner_of_a_file_must_be_root_or_trusted(place: Path) -> None:
    (place / "file").touch(0o644)
    os.chown(place / "file", NOBODY, 0)
    assert find_intruder_on(place / "file", NONE) == f"{place}/file belongs to user nobody"
    assert find_intruder_on(place / "file", frozenset({NOBODY})) == ""
    os.chown(place / "file", 4242, 0)
    assert find_intruder_on(place / "file", NONE) == f"{place}/file belongs to user 4242"


def test_path_in_a_directory_that_everybody_can_write_is_not_trusted(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    (place / "open/file").touch(0o644)
    assert find_intruder_on(place / "open/file", NONE) == f"every user can write to {place}/open"
    assert find_changers(place / "open") == Changers(anyone=True)
    (place / "open").chmod(0o1777)
    assert find_intruder_on(place / "open/file", NONE) == "", "in a sticky one the owner of the file counts"
    assert find_changers(place / "open") == Changers(anyone=True), "but anybody can make a new one"


def test_group_that_can_write_a_path_must_have_only_trusted_members(place: Path) -> None:
    (place / "file").touch()
    (place / "file").chmod(0o664)
    os.chown(place / "file", 0, 4242)
    assert find_intruder_on(place / "file", NONE) == f"the group 4242 can write to {place}/file"
    os.chown(place / "file", 0, 0)
    assert find_intruder_on(place / "file", NONE) == ""


def test_link_on_a_path_and_its_target_must_both_be_trusted(place: Path) -> None:
    (place / "real").mkdir()
    (place / "real/file").write_text("content")
    (place / "link").symlink_to("real")
    (place / "again").symlink_to(f"{place}/link/file")
    descriptor, entries = open_path(place / "again")
    names = [entry.path for entry in entries if entry.path.is_relative_to(place)]
    assert names == [
        place,
        place / "again",
        place,
        place / "link",
        place / "real",
        place / "real/file",
    ]
    assert read_small(descriptor, 4) == b"cont"
    os.close(descriptor)
    os.lchown(place / "link", NOBODY, NOBODY)
    assert find_intruder_on(place / "again", NONE) == f"{place}/link belongs to user nobody"


def test_path_with_endless_links_is_not_trusted(place: Path) -> None:
    (place / "one").symlink_to("other")
    (place / "other").symlink_to("one")
    before = descriptors()
    with pytest.raises(OSError, match="one") as caught:
        open_path(place / "one")
    assert caught.value.errno == errno.ELOOP
    assert descriptors() == before


@pytest.mark.parametrize(("kind", "number"), [("directory", errno.EISDIR), ("fifo", errno.EINVAL)])
def test_only_a_regular_file_is_read(place: Path, kind: str, number: int) -> None:
    path = place / "x"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    descriptor, _ = open_path(path)
    with pytest.raises(OSError, match=r"directory|file") as caught:
        read_small(descriptor, 10)
    assert caught.value.errno == number
    os.close(descriptor)


def test_directory_that_is_missing_may_belong_to_anyone(place: Path) -> None:
    assert find_changers(place / "none") == Changers(anyone=True)
