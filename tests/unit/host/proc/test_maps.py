"""Maps of our own process."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from crckpt.host import proc
from crckpt.host.proc.maps import Map, count_maps, find_mapped_files, read_maps


def test_map_of_a_file_is_read_with_path_and_inode(tmp_path: Path) -> None:
    path = tmp_path / "with spaces "
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        (found,) = (each for each in read_maps(os.getpid()) if each.path.startswith(str(tmp_path)))
        assert found.path == str(path)
        assert (found.is_shared, found.is_writable, found.has_file) == (True, True, True)
        assert found.end - found.start == mmap.PAGESIZE
        assert Path(found.link(os.getpid())).stat().st_ino == path.stat().st_ino
        assert found.link(os.getpid()) in find_mapped_files(os.getpid()).values()


def test_map_of_the_stack_is_recognized() -> None:
    (stack,) = (each for each in read_maps(os.getpid()) if each.path == "[stack]")
    assert (stack.is_shared, stack.is_writable, stack.has_file) == (False, True, False)


def test_map_files_name_has_no_leading_zeros() -> None:
    found = Map("00400000-00401000", "r-xp", "0", "08:01", "7", "/bin/true")
    assert found.link(1) == "/proc/1/map_files/400000-401000"


def test_ended_process_has_no_maps() -> None:
    assert count_maps(2**22 + 1) == 0
    assert find_mapped_files(2**22 + 1) == {}


def test_mapped_file_that_lost_its_name_is_found_once(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with path.open("r+b") as file:
        memory = [mmap.mmap(file.fileno(), mmap.PAGESIZE) for _ in range(2)]
    try:
        assert proc.find_deleted_mapped_files(os.getpid()) == ()
        (tmp_path / "other name").hardlink_to(path)
        path.unlink()
        assert proc.find_deleted_mapped_files(os.getpid()) == ((f"{path} (deleted)", 2 * mmap.PAGESIZE, 1),)
    finally:
        for mapping in memory:
            mapping.close()
