"""Watches of inotify whose file CRIU finds again by its handle, or does not."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from crckpt.host import proc
from crckpt.host.observe.watches import find_lost_watches

LIBC = ctypes.CDLL(None, use_errno=True)
IN_MODIFY = 2


@pytest.fixture
def inotify() -> Iterator[int]:
    descriptor = LIBC.inotify_init1(os.O_CLOEXEC)
    assert descriptor >= 0
    yield descriptor
    os.close(descriptor)


def watch(inotify: int, path: Path) -> None:
    assert LIBC.inotify_add_watch(inotify, os.fsencode(path), IN_MODIFY) > 0


def held(inotify: int) -> proc.Descriptor:
    (found,) = (found for found in proc.descriptors(os.getpid()) if found.fd == inotify)
    return found


def test_inotify_watch_of_a_file_reachable_by_handle_is_not_lost(inotify: int, tmp_path: Path) -> None:
    watch(inotify, tmp_path)
    watch(inotify, Path("/"))
    if os.geteuid() != 0:
        pytest.skip("only root opens files by their handles")
    assert "fhandle-bytes" in held(inotify).info
    assert find_lost_watches([held(inotify)]) == ()


def test_inotify_watch_with_a_stale_handle_is_lost(inotify: int, tmp_path: Path) -> None:
    """After a restart, a file system with generated handles does not know old ones."""
    place = tmp_path / "place"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "test", str(place)]
    if subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (place / "file").touch()
        watch(inotify, place / "file")
        found = held(inotify)
        assert find_lost_watches([found]) == ()
        begin, _, handle = found.info.partition("f_handle:")
        forged = replace(found, info=f"{begin}f_handle:{'ff' * (len(handle.split()[0]) // 2)}\n")
        assert find_lost_watches([forged]) == (forged,)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_descriptors_other_than_inotify_have_no_watches() -> None:
    assert find_lost_watches(found for found in proc.descriptors(os.getpid()) if "inotify" not in found.target) == ()
