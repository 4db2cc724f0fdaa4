"""Files that survive, and logs that are cut back and put back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from listing import mode, names
from other_user import as_user

from crckpt.host.disk import files

pytestmark = pytest.mark.usefixtures("wide_umask")


def test_private_directories_have_mode_0700(tmp_path: Path) -> None:
    files.make_private_directory(tmp_path / "new", "test")
    assert mode(tmp_path / "new") == 0o700
    with pytest.raises(FileExistsError):
        files.make_private_directory(tmp_path / "new", "test")
    files.ensure_private_directory(tmp_path / "new", "test")
    files.ensure_private_directory(tmp_path / "other", "test")
    assert mode(tmp_path / "other") == 0o700


def test_private_files_have_mode_0600(tmp_path: Path) -> None:
    files.write_new(tmp_path / "new", b"content", "test")
    assert ((tmp_path / "new").read_bytes(), mode(tmp_path / "new")) == (b"content", 0o600)
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "new", b"other", "test")
    assert (tmp_path / "new").read_bytes() == b"content"


def test_file_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_durably(path, b"first", "test")
    files.write_durably(path, b"second", "test")
    assert (path.read_bytes(), mode(path)) == (b"second", 0o600)
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        files.write_durably(tmp_path / "directory", b"x", "test")
    assert names(tmp_path) == ["directory", "file"], "a failure must leave no temporary file"


def test_interruption_after_the_creation_of_a_temporary_file_leaves_no_file(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from crckpt.errors import Interrupted
from crckpt.host.disk.files import created
from crckpt.host.process.signals import handle_interrupts

handle_interrupts()
# Python reports os.fchmod, the first call after the file is made.
sys.addaudithook(lambda event, _: signal.raise_signal(signal.SIGTERM) if event == "os.chmod" else None)
path = Path(sys.argv[1])
try:
    with created(path, "test"):
        print("entered")
except Interrupted:
    print(path.exists())
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "new")]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_file_is_moved_to_another_directory(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below").chmod(0o700)
    files.move_durably(tmp_path / "a", tmp_path / "below/b", "test")
    assert names(tmp_path / "below") == ["b"]
    assert names(tmp_path) == ["below"]


def test_is_named_finds_a_dangling_symbolic_link(log: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert all(map(files.is_named, (log, tmp_path, tmp_path / "link")))
    assert not any(map(files.is_named, (log / "x", tmp_path / "none")))


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
def test_io_errors_of_a_lost_disk_are_ignored(number: int) -> None:
    with files.losses_ignored():
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC])
def test_disk_errors_other_than_those_of_a_lost_disk_are_raised(number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)), files.losses_ignored():
        raise OSError(number, os.strerror(number))


def test_user_directories_follow_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert files.user_directory("XDG_CACHE_HOME", ".cache") == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert files.user_directory("XDG_CACHE_HOME", ".cache") == Path("/elsewhere")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_user_without_a_name_has_no_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")

    def check() -> None:
        assert files.user_directory("XDG_CACHE_HOME", ".cache") is None

    as_user(check, 2**31 - 3)


def test_status_of_a_missing_path_is_none(tmp_path: Path) -> None:
    assert files.status_of(str(tmp_path)) is not None
    assert files.status_of(str(tmp_path / "none")) is None
    assert files.status_of(f"{tmp_path}/{'x' * 300}") is None
