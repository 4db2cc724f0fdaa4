"""Mounts from the kernel's list, with names of any characters."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_programs import free_pid

from crckpt.host.proc.mountinfo import Mount, mount_points, read_mounts, read_mounts_of


@pytest.fixture
def mount_point(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs on an odd name."""
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a b\tc\\d\xff\n"))
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "nosuid,noexec,size=64k", "test", str(place)]
    if subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_mount_with_an_unusual_name_is_read(mount_point: Path) -> None:
    (found,) = (mount for mount in read_mounts() if mount.path == str(mount_point))
    status = mount_point.stat()
    assert (found.device, found.kind) == (status.st_dev, "tmpfs")
    assert {"nosuid", "noexec", "rw"} <= found.options
    assert "size=64k" in found.of_all
    assert (found.is_read_only, found.flags) == (False, 2 | 8)
    assert list(read_mounts_of(os.getpid())) == list(read_mounts())


def test_only_the_last_of_several_mounts_on_a_directory_is_visible(mount_point: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "test", mount_point], check=True)
    try:
        both = [mount for mount in read_mounts() if mount.path == str(mount_point)]
        (visible,) = (mount for mount in mount_points() if mount.path == str(mount_point))
        assert len(both) == 2
        assert visible == both[1]
        assert (visible.device, visible.is_read_only) == (mount_point.stat().st_dev, True)
    finally:
        subprocess.run(["umount", mount_point], check=True)


def test_mount_points_are_listed_with_parents_first() -> None:
    paths = [mount.path for mount in mount_points()]
    assert paths[0] == "/"
    for at, path in enumerate(paths):
        assert not any(Path(other).is_relative_to(path) for other in paths[:at])


@pytest.mark.parametrize(("own", "of_all"), [("ro", "rw"), ("rw", "ro")])
def test_mount_is_read_only_by_itself_or_its_file_system(own: str, of_all: str) -> None:
    assert Mount(1, 1, "/", "ext4", frozenset({own}), frozenset({of_all})).is_read_only


def test_ended_process_has_no_mounts() -> None:
    with pytest.raises(FileNotFoundError):
        list(read_mounts_of(free_pid()))
