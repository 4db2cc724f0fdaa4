"""Files in places where another user may have planted something: only regular files of ours are opened."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from crckpt.errors import IntegrityError
from crckpt.host.disk import checked_files
from crckpt.host.disk.checked_files import (
    check_directory,
    open_checked,
    open_directory,
    open_for_appending,
    read_checked,
)
from crckpt.host.disk.files import open_lock, remove_tree, write_durably
from crckpt.host.disk.log_excerpt import read_file_ends

NOBODY = 65534
LONGEST = "\U0001f600" * 63  # 252 of the 255 bytes that a name may have
MOST_BYTES = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 300_000])
def test_checked_file_is_read_completely(tmp_path: Path, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    (tmp_path / "file").write_bytes(content)
    assert read_checked(tmp_path / "file", MOST_BYTES) == content
    directory = open_directory(tmp_path)
    assert read_checked("file", MOST_BYTES, within=directory) == content
    os.close(directory)
    with pytest.raises(FileNotFoundError):
        read_checked(tmp_path / "none", MOST_BYTES)


def _link(path: Path) -> None:
    (path.parent / "target").write_text("other")
    path.symlink_to(path.parent / "target")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def _of_nobody(path: Path) -> None:
    path.write_text("theirs")
    os.chown(path, NOBODY, NOBODY)


def _of_a_terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


PLANTED_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (_link, "is a symbolic link"),
    "dangling": (lambda path: path.symlink_to("/nonexistent"), "is a symbolic link"),
    "directory": (Path.mkdir, "is a directory"),
    "fifo": (os.mkfifo, "is a FIFO"),
    "socket": (_socket, "is a socket"),
    "device": (lambda path: os.mknod(path, 0o20600, os.makedev(1, 5)), "is a character device"),
    "nobody": (_of_nobody, f"belongs to uid {NOBODY}"),
}


@pytest.mark.parametrize("kind", PLANTED_FILES)
def test_planted_file_of_the_wrong_kind_or_owner_is_refused(kind: str, tmp_path: Path) -> None:
    plant, words = PLANTED_FILES[kind]
    plant(tmp_path / "file")
    for attempt in (
        lambda: read_checked(tmp_path / "file", MOST_BYTES),
        lambda: open_lock(tmp_path / "file", "lock"),
    ):
        with pytest.raises(IntegrityError, match=words):
            attempt()
    if kind == "nobody":
        assert read_checked(tmp_path / "file", MOST_BYTES, owner=NOBODY) == b"theirs"


def test_size_of_a_checked_file_is_tested_before_it_is_read(tmp_path: Path) -> None:
    _of_a_terabyte(tmp_path / "file")
    with pytest.raises(IntegrityError, match="has 1099511627776 bytes; such a file may have at most 1048576"):
        read_checked(tmp_path / "file", MOST_BYTES)
    with pytest.raises(IntegrityError, match="is a sparse file of"):
        open_checked(tmp_path / "file")
    with pytest.raises(IntegrityError, match="has more than 10 bytes"):
        read_checked("/proc/version", 10)


def test_existing_lock_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "lock").chmod(0o644)
    os.close(open_lock(tmp_path / "lock", "lock"))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o644


def test_checked_directory_must_be_ours_and_not_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    check_directory(tmp_path)
    for name, words in (("link", "is a symbolic link"), ("theirs", "belongs to uid")):
        with pytest.raises(IntegrityError, match=words):
            check_directory(tmp_path / name)
    for name in ("link", "file"):
        (tmp_path / "file").touch()
        with pytest.raises(IntegrityError, match="not a directory, or is a link"):
            open_directory(tmp_path / name)


def test_removal_of_a_directory_does_not_follow_links(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("whole")
    (tmp_path / "link").symlink_to(canary)
    remove_tree(tmp_path / "link", "test")
    (tmp_path / "tree/inner/more").mkdir(parents=True)
    for above in (tmp_path / "tree", tmp_path / "tree/inner", tmp_path / "tree/inner/more"):
        (above / "link").symlink_to(canary)
        os.mkfifo(above / "fifo")
        (above / "file").touch()
    remove_tree(tmp_path / "tree", "test")
    (tmp_path / "file").touch()
    remove_tree(tmp_path / "file", "test")
    assert [path.name for path in tmp_path.iterdir()] == ["canary"]
    assert (canary / "file").read_text() == "whole"
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "none", "test")


def test_removal_of_a_directory_reaches_any_depth(tmp_path: Path) -> None:
    """The path is too long for any system call, and has more levels than Python has descriptors or stack frames."""
    levels = sys.getrecursionlimit() + 100
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, levels // 2), hard))
    try:
        remove_tree(tmp_path / ("d" * 200), "test")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_nested_directory_with_the_longest_name_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tree/inner" / LONGEST / "more").mkdir(parents=True)
    remove_tree(tmp_path / "tree", "test")
    assert list(tmp_path.iterdir()) == []


def test_file_with_the_longest_name_is_replaced(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        write_durably(tmp_path / LONGEST, content, "test")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


@pytest.mark.parametrize("read", [checked_files.read_build_id, read_file_ends])
def test_device_and_fifo_are_not_opened(tmp_path: Path, read: Callable[[str], object]) -> None:
    """Opening a device may have effects (a watchdog, a tape).

    Opening a FIFO would wake the process that waits for it.
    """
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    with subprocess.Popen(["/bin/sh", "-c", "echo; : > fifo"], cwd=tmp_path, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        wait = Path(f"/proc/{writer.pid}/wchan")
        deadline = time.monotonic() + 30
        while "fifo" not in wait.read_text() and "wait_for_partner" not in wait.read_text():
            assert time.monotonic() < deadline, wait.read_text()
        with suppress(OSError):
            assert read(str(tmp_path / "link")) is None
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(timeout=0.3)
        writer.kill()


def test_file_is_created_for_appending(tmp_path: Path) -> None:
    for word in (b"one", b"two"):
        descriptor = open_for_appending(tmp_path / "new")
        os.write(descriptor, word)
        os.close(descriptor)
    assert (tmp_path / "new").read_bytes() == b"onetwo"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_link_of_another_user_is_not_followed_for_appending(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.close(open_for_appending(tmp_path / "link/ours"))
    os.lchown(tmp_path / "link", 65534, 65534)
    with pytest.raises(IntegrityError, match="link belongs to uid 65534"):
        open_for_appending(tmp_path / "link/theirs")
    assert not (tmp_path / "real/theirs").exists()
