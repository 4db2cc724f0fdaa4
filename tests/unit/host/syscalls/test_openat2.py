"""Files are opened without following a link, and with the rights of another user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.host.syscalls.openat2 import file_rights_of, open_without_links

NOBODY = 65534


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_text("content")
    (tmp_path / "below").mkdir()
    (tmp_path / "below/link").symlink_to("../file")
    (tmp_path / "linked").symlink_to("below")
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_file_in_a_directory_is_opened_by_its_name(directory: int, tmp_path: Path) -> None:
    for path, start in (("file", directory), (str(tmp_path / "file"), None)):
        descriptor = open_without_links(path, os.O_RDONLY, directory=start)
        assert os.read(descriptor, 100) == b"content"
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("below/link", errno.ELOOP),
        ("linked/link", errno.ELOOP),
        ("../file", errno.EXDEV),
        ("/etc/passwd", errno.EXDEV),
        ("none", errno.ENOENT),
    ],
)
def test_links_and_parent_directories_are_refused(directory: int, path: str, number: int) -> None:
    with pytest.raises(OSError, match=path) as caught:
        open_without_links(path, os.O_RDONLY, directory=directory)
    assert caught.value.errno == number


def test_new_file_gets_the_requested_mode(directory: int, tmp_path: Path) -> None:
    os.close(open_without_links("new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640, directory=directory))
    assert (tmp_path / "new").stat().st_mode & 0o777 & ~0o022 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take the rights of another user")
def test_rights_of_another_user_are_held_only_within_the_block(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    for above in (tmp_path, *tmp_path.parents[:-1]):
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o001)
    groups = os.getgroups()
    with file_rights_of(NOBODY, NOBODY, (4,)):
        assert os.getgroups() == [4]
        with pytest.raises(PermissionError):
            secret.read_bytes()
        (Path("/dev/null")).read_bytes()
    assert secret.read_bytes() == b""
    assert os.getgroups() == groups
    with pytest.raises(ZeroDivisionError), file_rights_of(NOBODY, NOBODY):
        raise ZeroDivisionError
    assert secret.read_bytes() == b""


def test_acting_as_the_own_user_changes_no_rights() -> None:
    with file_rights_of(os.geteuid(), os.getegid()):
        assert os.geteuid() == os.getuid()
