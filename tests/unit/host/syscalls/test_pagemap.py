"""Written pages of another process, by write protection: no change of its memory is missed."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import pytest
from protection import PAGES, pages, protect_all_maps
from smaller_bounds import smaller_bounds
from target_processes import StatementRunner, is_registered, reset

from crckpt.errors import HostCannot
from crckpt.host.proc.maps import Map
from crckpt.host.syscalls import memory_trials, pagemap
from crckpt.host.syscalls.pagemap import (
    AddressRange,
    find_written,
    others,
    private_anonymous,
)

PAGE = mmap.PAGESIZE
MAP_HUGETLB = 0x40000
MAP_NORESERVE = 0x4000
MADV_HUGEPAGE = 14
MADV_GUARD_INSTALL = 102
MADV_GUARD_REMOVE = 103


@pytest.fixture(scope="module", autouse=True)
def _kernel_can() -> None:
    try:
        assert memory_trials.tracks_by_write_protection()
    except HostCannot as error:
        pytest.skip(error.message)


def test_exactly_the_written_pages_are_found(target: StatementRunner) -> None:
    place = target.do(f"result = area({PAGES}); write(result, range(32))")
    protection = protect_all_maps(target.pid)
    assert is_registered(target.pid, place)
    assert pages(target.pid, place) == set(range(32)), "before the first reset all that is there"
    reset(target.pid)
    assert pages(target.pid, place) == set()
    target.do("write(result, (3, 31, 40))")
    assert pages(target.pid, place) == {3, 31, 40}
    assert pages(target.pid, place) == {3, 31, 40}, "looking resets nothing"
    protection.close()


def test_pages_written_by_the_kernel_count_as_written(target: StatementRunner, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * PAGE)
    place = target.do(f"result = area({PAGES}); write(result, range({PAGES}))")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    target.do(f"file = open({str(tmp_path / 'file')!r}, 'rb')")
    target.do("LIBC.read(file.fileno(), ctypes.c_void_p(result + 5 * PAGE), 100)")
    assert pages(target.pid, place) == {5}
    protection.close()


def test_all_written_regions_are_found_in_several_scans(target: StatementRunner) -> None:
    place = target.do(f"result = area({PAGES}); write(result, range({PAGES}))")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    target.do(f"write(result, range(0, {PAGES}, 2))")
    with smaller_bounds(pagemap, _REGIONS_AT_ONCE=3, _PIECE=16 * PAGE):
        assert pages(target.pid, place) == set(range(0, PAGES, 2))
    protection.close()


@pytest.mark.parametrize("count", [300, 700, 1500])
def test_scan_of_page_maps_reports_no_page_twice(target: StatementRunner, count: int) -> None:
    """The kernel answers in several passes, and may report an earlier end than it has reached."""
    place = target.do(f"result = area({2 * count}); write(result, range({2 * count}))")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    target.do(f"write(result, range(0, {2 * count}, 2))")
    found = find_written(target.pid, (AddressRange(place, place + 2 * count * PAGE),))
    assert int((found[:, 1] - found[:, 0]).sum()) == count * PAGE
    protection.close()


def test_dropped_pages_are_absent_and_new_ones_written(target: StatementRunner) -> None:
    place = target.do(f"result = area({PAGES}); write(result, range({PAGES}))")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    target.do(f"drop(result, {PAGES})")
    assert pages(target.pid, place) == set()
    target.do("write(result, (7, 8))")
    assert pages(target.pid, place) == {7, 8}
    protection.close()


def test_new_mapping_is_unregistered_and_counts_as_written(target: StatementRunner) -> None:
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    place = target.do(f"result = area({PAGES}); write(result, range(9))")
    reset(target.pid)
    assert not is_registered(target.pid, place)
    assert pages(target.pid, place) == set(range(9)), "no reset reaches it"
    protection.register(AddressRange(place, place + PAGES * PAGE))
    assert pages(target.pid, place) == set(range(9)), "and from now on it is tracked"
    reset(target.pid)
    assert pages(target.pid, place) == set()
    protection.close()


def test_pages_moved_by_mremap_count_as_written(target: StatementRunner) -> None:
    target.do(f"old = area({PAGES}); write(old, range({PAGES})); new = area({PAGES}); write(new, range({PAGES}), 2)")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    place = target.do(f"result = moved(old, {PAGES}, new)")
    assert pages(target.pid, place) == set(range(PAGES))
    for mapping in private_anonymous(target.pid):
        protection.register(mapping)
    assert pages(target.pid, place) == set(range(PAGES)), "also once it is registered again"
    protection.close()


def test_forked_child_is_not_tracked(target: StatementRunner) -> None:
    place = target.do(f"place = result = area({PAGES}); write(result, range({PAGES}))")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    child = target.do("result = os.fork(); result or os.read(os.pipe()[0], 1)")
    assert not is_registered(child, place)
    assert pages(child, place) == set(range(PAGES))
    second = protect_all_maps(child)
    assert pages(child, place) == set(range(PAGES))
    reset(child)
    assert pages(child, place) == set()
    target.do("write(place, [2])")
    assert pages(target.pid, place) == {2}
    assert pages(child, place) == set(), "each has its own bits"
    target.do("os.kill(result, 9); os.waitpid(result, 0)")
    second.close()
    protection.close()


def test_old_descriptor_returns_nothing_after_exec(target: StatementRunner) -> None:
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    with Path(f"/proc/{target.pid}/pagemap").open("rb", buffering=0) as old:
        assert target.process.stdin is not None
        assert target.process.stdout is not None
        target.process.stdin.write("os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])\n")
        target.process.stdin.flush()
        assert target.process.stdout.readline() == "ready\n"
        old.seek(0x400000 // PAGE * 8)
        assert old.read(8) == b"", "the trap: it succeeds"
        place = target.do(f"result = area({PAGES}); write(result, range(3))")
        assert pages(target.pid, place) == {0, 1, 2}, "so ours is opened each time"
    assert not any(is_registered(target.pid, mapping.start) for mapping in private_anonymous(target.pid))
    with pytest.raises(OSError, match="Cannot allocate") as caught:
        protection.register(AddressRange(place, place + PAGE))
    assert caught.value.errno == errno.ENOMEM, "its memory has gone"
    protection.close()


def test_mappings_cannot_be_tracked_by_two_userfaultfds(target: StatementRunner) -> None:
    protection = protect_all_maps(target.pid)
    with pytest.raises(OSError, match="busy"):
        protect_all_maps(target.pid)
    protection.close()
    protect_all_maps(target.pid).close()


def test_every_page_counts_as_written_without_the_tracker(target: StatementRunner) -> None:
    place = target.do(f"result = area({PAGES}); write(result, range({PAGES}))")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    assert pages(target.pid, place) == set()
    protection.close()
    assert not is_registered(target.pid, place)
    assert pages(target.pid, place) == set(range(PAGES))
    target.do("write(result, [1])")


def test_written_parts_of_a_huge_page_are_reported(target: StatementRunner) -> None:
    place = target.do("result = (area(2048) + (1 << 21) - 1) & -(1 << 21)")
    target.do(f"LIBC.madvise(ctypes.c_void_p(result), ctypes.c_size_t(1 << 21), {MADV_HUGEPAGE}); write(result, [0])")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    target.do("write(result, [100])")
    found = pages(target.pid, place, 512)
    assert 100 in found
    assert found in ({100}, set(range(512))), "split, or written as a whole"
    protection.close()


def test_guard_pages_are_kept_when_they_are_tracked(target: StatementRunner) -> None:
    place = target.do(f"result = area({PAGES}); write(result, range({PAGES}))")
    target.do(f"guard = LIBC.madvise(ctypes.c_void_p(result), ctypes.c_size_t(4 * PAGE), {MADV_GUARD_INSTALL})")
    if target.do("result = guard") != 0:
        pytest.skip("this kernel has no guard pages in a map (6.13)")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    for mapping in private_anonymous(target.pid):
        protection.register(mapping)
    target.do("pipe = os.pipe(); os.write(pipe[1], b'x' * 8)")
    assert target.do(f"result = LIBC.read(pipe[0], ctypes.c_void_p({place}), 1)") == -1, "it cannot be written"
    target.do(f"LIBC.madvise(ctypes.c_void_p({place}), ctypes.c_size_t(4 * PAGE), {MADV_GUARD_REMOVE})")
    reset(target.pid)
    assert target.do(f"result = LIBC.read(pipe[0], ctypes.c_void_p({place}), 1)") == 1
    assert pages(target.pid, place, 4) == {0}
    protection.close()


def test_hugetlb_mappings_are_not_scanned(target: StatementRunner) -> None:
    place = target.do(f"result = area(512, {MAP_HUGETLB | MAP_NORESERVE})")
    protection = protect_all_maps(target.pid)
    assert not is_registered(target.pid, place)
    reset(target.pid)
    protection.close()
    assert f"{place:x}-" in Path(f"/proc/{target.pid}/maps").read_text()
    assert not [mapping for mapping in private_anonymous(target.pid) if mapping.start <= place < mapping.end]


def test_file_and_shared_mappings_are_not_tracked(target: StatementRunner, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * PAGE)
    target.do("shared = mmap.mmap(-1, PAGE); result = ctypes.addressof(ctypes.c_char.from_buffer(shared))")
    target.do(
        f"file = open({str(tmp_path / 'file')!r}, 'r+b'); private = mmap.mmap(file.fileno(), PAGE, mmap.MAP_PRIVATE)"
    )
    names = Path(f"/proc/{target.pid}/maps").read_text().splitlines()
    tracked = {f"{mapping.start:x}-{mapping.end:x}" for mapping in private_anonymous(target.pid)}
    for line in names:
        addresses, rights, _, _, inode, *name = line.split(maxsplit=5)
        if inode != "0" or "s" in rights or name[:1] in (["[vdso]"], ["[vvar]"]):
            assert addresses not in tracked, line
    assert len(tracked) > 2


def test_maps_that_changed_while_read_are_consistent() -> None:
    """The list is read in parts: the second mapping is merged with the first meanwhile.

    A file may have the name of a kernel mapping.
    """
    lines = (
        "1000-3000 rw-p 00000000 00:00 0 ",
        "1000-5000 rw-p 00000000 00:00 0 ",
        "7000-8000 rw-p 00000000 00:00 0                                  [heap]",
        "9000-a000 rw-p 00000000 fe:00 12                                 /[vsyscall]",
        "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]",
    )
    maps = [Map(*line.split(maxsplit=5)) for line in lines]
    own = [AddressRange(0x1000, 0x3000), AddressRange(0x1000, 0x5000), AddressRange(0x7000, 0x8000)]
    assert list(private_anonymous(maps)) == own
    assert list(private_anonymous(maps, with_room=True)) == [
        own[0],
        AddressRange(0x1000, 0x7000),
        AddressRange(0x7000, 0x9000),
    ]
    assert others(maps) == (AddressRange(0x9000, 0xA000),)
    assert private_anonymous([], with_room=True) == (), "of a process that has ended"
