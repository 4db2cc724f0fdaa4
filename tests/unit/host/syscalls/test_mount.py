"""Mounts in a mount namespace of our own. Each case is a child: it leaves this test's namespace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from other_user import as_user

from crckpt.host.syscalls import own_process
from crckpt.host.syscalls.own_process import unshare

CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x40000 | 0x4000  # MS_PRIVATE | MS_REC

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


def apart(check: Callable[[], None]) -> None:
    """Run the function as root, in a child with mounts of its own."""

    def run() -> None:
        unshare(CLONE_NEWNS)
        own_process.mount("", "/", flags=MS_REC_PRIVATE)
        check()

    as_user(run, 0)


def test_directory_that_is_bind_mounted_shows_the_other_one(tmp_path: Path) -> None:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "source/file").write_text("content")

    def check() -> None:
        own_process.bind(str(tmp_path / "source"), str(tmp_path / "target"))
        assert (tmp_path / "target/file").read_text() == "content"

    apart(check)
    assert list((tmp_path / "target").iterdir()) == []


def test_read_only_mount_cannot_be_written(tmp_path: Path) -> None:
    def check() -> None:
        own_process.mount("test", str(tmp_path), "tmpfs", data="size=64k")
        (tmp_path / "file").write_text("content")
        own_process.bind_read_only(str(tmp_path), str(tmp_path))
        assert (tmp_path / "file").read_text() == "content"
        with pytest.raises(OSError, match="Read-only file system"):
            (tmp_path / "file").write_text("other")

    apart(check)


def test_mount_can_become_the_root_of_the_process(tmp_path: Path) -> None:
    def check() -> None:
        own_process.mount("test", str(tmp_path), "tmpfs")
        (tmp_path / "only this").touch()
        own_process.become_root(str(tmp_path))
        assert [path.name for path in Path("/").iterdir()] == ["only this"]
        assert Path.cwd() == Path("/")

    apart(check)


def test_failed_mount_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"{tmp_path}/none"):
        own_process.bind(str(tmp_path), str(tmp_path / "none"))
