"""CRIU reads the kernel's smaps, also where the library answers without a scan of all pages."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from target_processes import StatementRunner
from target_processes import statement_runner as target_of

READER = """
import ctypes, os, sys
directory = os.open(sys.argv[1], os.O_RDONLY)
number = ctypes.CDLL(None).openat(directory, b"smaps", os.O_RDONLY)
with open(number, "rb") as file:
    sys.stdout.buffer.write(file.read())
"""
ENTRY = 128
DONTFORK, DOFORK = 10, 11
KINDS = """import mmap
kept, kind, anonymous = [], mmap.MAP_PRIVATE, mmap.MAP_ANONYMOUS
new = lambda: kept.append(mmap.mmap(-1, 1 << 16, kind | anonymous)) or kept[-1]
for advice in (1, 2, 12, 14, 15, 16, 18): new().madvise(advice)
kept += [mmap.mmap(-1, 1 << 16, flags | anonymous) for flags in (mmap.MAP_SHARED, kind | 0x4000)]  # MAP_NORESERVE
mapped = new()"""

pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in platform.release().split(".")[:2]) < (6, 1)
    or not Path("/sys/kernel/btf/vmlinux").exists()
    or os.geteuid() != 0,
    reason="here no iterator tells the maps of a process",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The file with the flags of a tree that has none yet."""
    (tmp_path / "table").touch()
    return tmp_path / "table"


@pytest.fixture
def target() -> Iterator[StatementRunner]:
    """A process with maps of many kinds."""
    with target_of() as target:
        for line in KINDS.splitlines():
            target.do(line)
        yield target


class SmapsReading:
    """The lines that a program reads as smaps."""

    def __init__(self, text: str) -> None:
        self.is_the_kernels = "\nRss:" in text
        lines = text.splitlines()
        self.lines = [line.split() for line in lines if "-" in line.split()[0] or line.startswith("VmFlags:")]


def reading(place: int | Path, **environment: str | Path) -> subprocess.Popen[str]:
    """Read smaps as CRIU does, in the directory of this process or another."""
    words = ["/usr/bin/python3", "-S", "-c", READER, f"/proc/{place}" if isinstance(place, int) else str(place)]
    named = {"CRCKPT_TRACKER": "soft-dirty"} | {name: str(value) for name, value in environment.items()}
    return subprocess.Popen(words, env=os.environ | named, stdout=subprocess.PIPE, text=True)


def read(place: int | Path, **environment: str | Path) -> SmapsReading:
    out, _ = (process := reading(place, **environment)).communicate(timeout=60)
    assert process.returncode == 0
    return SmapsReading(out)


def test_flags_of_memory_maps_are_queried_once_and_then_cached(
    library: Path, target: StatementRunner, table: Path
) -> None:
    right = read(target.pid).lines
    assert sum(line[0] == "VmFlags:" for line in right) == len(right) // 2 > 20
    for is_first in (True, False):
        made = read(target.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table)
        assert made.lines == right
        assert made.is_the_kernels == is_first


def test_cached_flags_of_many_memory_maps_equal_those_of_the_kernel(
    library: Path, target: StatementRunner, table: Path
) -> None:
    for count in (1500, 3000):
        target.do(f"kept += [mmap.mmap(-1, 4096, kind | anonymous, 1 + n % 2) for n in range({count})]")
        right = read(target.pid).lines
        assert len(right) > 2 * count
        for _ in range(2):
            made = read(target.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table)
            assert made.lines == right
        assert not made.is_the_kernels


def test_flags_of_memory_maps_changed_by_madvise_are_queried(
    library: Path, target: StatementRunner, table: Path
) -> None:
    """The whole map is advised: its line in /proc/PID/maps does not change."""
    read(target.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table)
    listed = Path(f"/proc/{target.pid}/maps").read_text()
    for advice, is_new in ((DONTFORK, True), (DOFORK, False), (DONTFORK, False)):
        target.do(f"mapped.madvise({advice})")
        assert Path(f"/proc/{target.pid}/maps").read_text() == listed
        made = read(target.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table)
        assert made.lines == read(target.pid).lines
        assert made.is_the_kernels == is_new
        assert any("dc" in line[1:] for line in made.lines if line[0] == "VmFlags:") == (advice == DONTFORK)


def test_unusable_cache_of_map_flags_is_ignored(library: Path, target: StatementRunner, tmp_path: Path) -> None:
    torn, missing = tmp_path / "torn", tmp_path / "nowhere/table"
    torn.write_bytes(bytes(ENTRY + 5))
    for table in (torn, missing, tmp_path, ""):
        for _ in range(2):
            made = read(target.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table)
            assert made.is_the_kernels
            assert made.lines == read(target.pid).lines
    assert torn.read_bytes() == bytes(ENTRY + 5)


def test_concurrent_readers_add_each_entry_to_the_cache_once(
    library: Path, target: StatementRunner, table: Path
) -> None:
    for _ in range(2):
        readers = [reading(target.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table) for _ in range(6)]
        right = read(target.pid).lines
        for reader in readers:
            assert SmapsReading(reader.communicate(timeout=60)[0]).lines == right
    content = table.read_bytes()
    entries = [content[place : place + ENTRY] for place in range(0, len(content), ENTRY)]
    assert len({entry[:8] for entry in entries}) == len(entries) > 10
    assert {len(entry) for entry in entries} == {ENTRY}
    assert not read(target.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table).is_the_kernels


def test_each_process_gets_its_own_map_flags_from_the_cache(
    library: Path, target: StatementRunner, table: Path
) -> None:
    with target_of() as other:
        for one in (target, other, target, other):
            made = read(one.pid, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table)
            assert made.lines == read(one.pid).lines
    assert not made.is_the_kernels


def test_file_that_has_the_name_of_the_cache_is_left_alone(
    library: Path, target: StatementRunner, table: Path, tmp_path: Path
) -> None:
    """The file may also be one that cannot be opened."""
    (tmp_path / "smaps").write_text("some text\n")
    for name in ("stat", "maps"):
        os.mkfifo(tmp_path / name)
    output = reading(tmp_path, LD_PRELOAD=library, CRCKPT_MAP_FLAGS=table).communicate(timeout=60)[0]
    assert output == "some text\n"
    assert table.stat().st_size == 0
