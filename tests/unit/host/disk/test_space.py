"""Free space on disks and in memory, as the system's own programs count it."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

import psutil

from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.proc.maps import sum_memory


def test_free_space_of_a_missing_path_is_that_of_its_nearest_existing_parent(tmp_path: Path) -> None:
    assert space.nearest_existing(tmp_path / "a/b/c") == tmp_path
    assert space.nearest_existing(tmp_path) == tmp_path


def test_free_disk_matches_shutil(tmp_path: Path) -> None:
    assert abs(space.free_disk(tmp_path) - shutil.disk_usage(tmp_path).free) < 1 << 30


def test_free_memory_is_at_most_the_available() -> None:
    assert 0 < space.free_memory() <= psutil.virtual_memory().available + (1 << 28)


def test_limit_of_dirty_pages_is_that_of_the_kernel() -> None:
    fixed = int(Path("/proc/sys/vm/dirty_bytes").read_text())
    assert space.unwritten_limit() == fixed or 0 < space.unwritten_limit() <= space.free_memory() + (1 << 28)


def test_memory_file_systems_are_recognized() -> None:
    assert space.is_in_memory(Path("/dev/shm"))
    assert not space.is_in_memory(Path("/proc"))


def test_memory_of_a_process_is_what_it_wrote() -> None:
    before = proc.memory(os.getpid())
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as private:
        for at in range(0, len(private), mmap.PAGESIZE):
            private[at] = 1
        assert 60 << 20 < proc.memory(os.getpid()) - before < 70 << 20
    assert proc.memory(2**22 + 1) == 0


def test_huge_pages_shared_by_processes_count_once_as_memory() -> None:
    """A hundred processes of a database may share the same huge pages."""
    rows = [
        "0-1 ---p 0 0 0 [rollup]",
        "Anonymous: 4 kB",
        "Pss_Shmem: 8 kB",
        "Shared_Hugetlb: 8388608 kB",
        "THPeligible: 0",
    ]
    assert sum_memory([rows] * 100) == (8 << 30) + 100 * (12 << 10)
