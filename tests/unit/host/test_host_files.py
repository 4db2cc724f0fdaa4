"""Files that survive, and logs that are cut back and put back."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.errors import RestoreFailed
from crckpt.host import files, steps


@pytest.fixture(autouse=True)
def wide_umask() -> Iterator[None]:
    """Modes must not depend on it."""
    before = os.umask(0o777)
    yield
    os.umask(before)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of which the first 4 bytes belong to a checkpoint."""
    path = tmp_path / "log"
    path.write_bytes(b"old new lines")
    path.chmod(0o644)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_directories(tmp_path: Path) -> None:
    files.make_private_directory(tmp_path / "new", "test")
    assert mode(tmp_path / "new") == 0o700
    with pytest.raises(FileExistsError):
        files.make_private_directory(tmp_path / "new", "test")
    files.ensure_private_directory(tmp_path / "new", "test")
    files.ensure_private_directory(tmp_path / "other", "test")
    assert mode(tmp_path / "other") == 0o700


def test_private_files(tmp_path: Path) -> None:
    files.write_new(tmp_path / "new", b"content", "test")
    assert ((tmp_path / "new").read_bytes(), mode(tmp_path / "new")) == (b"content", 0o600)
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "new", b"other", "test")
    assert (tmp_path / "new").read_bytes() == b"content"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_durably(path, b"first", "test")
    files.write_durably(path, b"second", "test")
    assert (path.read_bytes(), mode(path)) == (b"second", 0o600)
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        files.write_durably(tmp_path / "directory", b"x", "test")
    assert names(tmp_path) == ["directory", "file"], "a failure must leave no temporary file"


def test_moving(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below").chmod(0o700)
    files.move_durably(tmp_path / "a", tmp_path / "below/b", "test")
    assert names(tmp_path / "below") == ["b"]


def test_what_came_after_is_kept_beside(log: Path, tmp_path: Path) -> None:
    with files.put_back_on_failure(log, 4, tmp_path / "kept"):
        assert log.read_bytes() == b"old "
    assert (log.read_bytes(), mode(log)) == (b"old ", 0o644)
    assert ((tmp_path / "kept").read_bytes(), mode(tmp_path / "kept")) == (b"new lines", 0o600)


def test_a_failure_puts_the_lines_back(log: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.put_back_on_failure(log, 4, tmp_path / "kept"):
        raise KeyboardInterrupt
    assert log.read_bytes() == b"old new lines"
    assert names(tmp_path) == ["log"]


@pytest.mark.parametrize("has_cut", [True, False])
def test_an_interruption_while_it_is_cut_loses_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_cut: bool
) -> None:
    truncate = os.truncate

    def interrupted(path: Path, size: int) -> None:
        if has_cut:
            truncate(path, size)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "truncate", interrupted)
    with pytest.raises(KeyboardInterrupt), files.put_back_on_failure(log, 4, tmp_path / "kept"):
        pytest.fail("it was interrupted")
    assert log.read_bytes() == b"old new lines"
    assert names(tmp_path) == ["log"]


def test_the_lines_are_durable_before_the_other_copy_goes(log: Path, tmp_path: Path) -> None:
    taken: list[str] = []
    steps.watch(lambda name, _operands: taken.append(name))
    try:
        with pytest.raises(KeyboardInterrupt), files.put_back_on_failure(log, 4, tmp_path / "kept"):
            raise KeyboardInterrupt
    finally:
        steps.watch(None)
    assert taken[-4:] == ["rewound.resize", "rewound.write", "rewound.sync", "tail.unlink"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN])
def test_what_the_disk_has_lost_is_named_all_the_same(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert (files.is_named(log), files.is_named(log / "x"), files.is_named(tmp_path / "none")) == (True, False, False)

    def lost(_path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "stat", lost)
    assert files.is_named(log)


def test_lines_that_were_kept_before_stay(log: Path, tmp_path: Path) -> None:
    """The same checkpoint may be restored, and its logs cut back, more than once."""
    for _ in range(3):
        with files.put_back_on_failure(log, 4, tmp_path / "kept"):
            pass
        with log.open("ab") as file:
            file.write(b"more")
    with pytest.raises(ValueError, match="x"), files.put_back_on_failure(log, 4, tmp_path / "kept"):
        raise ValueError("x")
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {
        "kept": b"new lines",
        "kept.2": b"more",
        "kept.3": b"more",
        "log": b"old more",
    }


def test_a_log_that_cannot_be_cut_loses_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(IsADirectoryError),
        files.put_back_on_failure(tmp_path, 4, tmp_path / "kept"),
    ):
        pytest.fail("there was nothing to cut")
    assert names(tmp_path) == []


def test_a_link_in_its_place_is_not_followed(log: Path, tmp_path: Path) -> None:
    """Who owns the directory may choose the target; we may cut what he may not."""
    (tmp_path / "link").symlink_to(log)
    with (
        pytest.raises(RestoreFailed, match="exchanged"),
        files.put_back_on_failure(tmp_path / "link", 4, tmp_path / "kept"),
    ):
        pytest.fail("it was cut")
    (tmp_path / "below").mkdir(0o700)
    log.rename(tmp_path / "below/log")
    (tmp_path / "there").symlink_to("below")
    there = tmp_path / "there/log"
    with pytest.raises(RestoreFailed, match="exchanged"), files.put_back_on_failure(there, 4, tmp_path / "kept"):
        pytest.fail("it was cut")
    assert there.read_bytes() == b"old new lines"
    assert names(tmp_path) == ["below", "link", "there"]


def test_a_log_that_was_begun_anew_is_not_filled_up(log: Path, tmp_path: Path) -> None:
    with pytest.raises(RestoreFailed, match="exchanged"), files.put_back_on_failure(log, 40, tmp_path / "kept"):
        pytest.fail("it was resized")
    assert (log.read_bytes(), names(tmp_path)) == (b"old new lines", ["log"])


def test_what_is_appended_while_it_is_copied_is_kept_too(log: Path, tmp_path: Path) -> None:
    def append(name: str, _operands: object) -> None:
        if name == "tail.sync-directory":
            with log.open("ab") as file:
                file.write(b", and more")

    steps.watch(append)
    try:
        with files.put_back_on_failure(log, 4, tmp_path / "kept"):
            assert log.read_bytes() == b"old "
    finally:
        steps.watch(None)
    assert (tmp_path / "kept").read_bytes() == b"new lines, and more"


def test_where_a_user_has_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert files.user_directory("XDG_CACHE_HOME", ".cache") == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert files.user_directory("XDG_CACHE_HOME", ".cache") == Path("/elsewhere")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 3)
    assert files.user_directory("XDG_CACHE_HOME", ".cache") is None


def test_status_of(tmp_path: Path) -> None:
    assert files.status_of(str(tmp_path)) is not None
    assert files.status_of(str(tmp_path / "none")) is None
    assert files.status_of(f"{tmp_path}/{'x' * 300}") is None


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 300_000])
def test_all_of_a_file_is_read(tmp_path: Path, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "file").chmod(0o600)
    assert files.read(str(tmp_path / "file")) == content
    with pytest.raises(FileNotFoundError):
        files.read(str(tmp_path / "none"))
