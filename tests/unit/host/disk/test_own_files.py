"""Files of crckpt count only if no other user can have written them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.host.disk.own_files import read_own, write_private

NOBODY = 65534


@pytest.fixture(autouse=True)
def _permissive_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("spoilt", ["readable by its group only", "writable by its group", "writable by all"])
def test_file_writable_by_others_is_not_read(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "file"
    write_private(path, b"text")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_own(path) == b"text"
    path.chmod({"readable by its group only": 0o640, "writable by its group": 0o620, "writable by all": 0o602}[spoilt])
    if spoilt.startswith("writable"):
        with pytest.raises(PermissionError):
            read_own(path)
    else:
        assert read_own(path) == b"text"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    write_private(tmp_path / "file", b"text")
    os.chown(tmp_path / "file", NOBODY, NOBODY)
    with pytest.raises(PermissionError):
        read_own(tmp_path / "file")


def test_link_pipe_or_directory_is_not_read(tmp_path: Path) -> None:
    write_private(tmp_path / "file", b"text")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(0o700)
    for name in ("link", "pipe", "directory"):
        with pytest.raises(OSError, match=name):
            read_own(tmp_path / name)
