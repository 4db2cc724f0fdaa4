"""A page in another frame or map than at the last reset counts as written, though it has no soft-dirty bit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from target_processes import StatementRunner, merging, running, wait_for

from crckpt.tracking.soft_dirty import SoftDirty

READER = """
import ctypes, json, os, struct, sys
libc, (place, pages, before) = ctypes.CDLL(None, use_errno=True), map(int, sys.argv[2:])
process = os.open(f"/proc/{sys.argv[1]}", os.O_RDONLY)
os.close(libc.openat(process, b"smaps", os.O_RDONLY))
print("seen", flush=True)
sys.stdin.readline()
number = libc.openat(process, b"pagemap", os.O_RDONLY)
results, content = {}, ctypes.create_string_buffer(8 * pages)
def count():
    return sum(entry >> 55 & 1 for entry, in struct.iter_unpack("<Q", content.raw))
assert libc.pread64(number, content, 8 * before, ctypes.c_long(place // 4096 * 8)) == 8 * before
assert libc.pread64(number, content, 8 * pages, ctypes.c_long(place // 4096 * 8)) == 8 * pages
results["pread"] = count()
os.lseek(number, place // 4096 * 8, os.SEEK_SET)
assert libc.read(number, content, 8 * pages) == 8 * pages
results["read"] = count()
regions = (ctypes.c_uint64 * 768)()
end = place + pages * 4096
words = struct.pack("<12Q", 96, 0, place, end, 0, ctypes.addressof(regions), 256, 0, 0, 0, 8 | 16, 8 | 16 | 128)
found = libc.ioctl(number, ctypes.c_ulong(0xC0606610), ctypes.create_string_buffer(words, 96))
if found >= 0:
    scanned = range(found)
    results["scan"] = sum((regions[3 * i + 1] - regions[3 * i]) // 4096 for i in scanned if regions[3 * i + 2] & 128)
print(json.dumps(results))
"""
PAGES_OF_A_HUGE_PAGE = 512
ALIGNED_AREA = (
    "result = area(1024); result += -result % (512 * PAGE); LIBC.madvise(ctypes.c_void_p(result), 512 * PAGE, {})"
)
HUGE_PAGE, SMALL_PAGES, MERGEABLE = 14, 15, 12  # MADV_*, linux/mman.h


class Dumps:
    """Page maps read as by CRIU in several dumps, with the bits reset after each."""

    def __init__(self, library: Path, target: StatementRunner, frames: Path) -> None:
        frames.touch()
        words = {"LD_PRELOAD": str(library), "CRCKPT_TRACKER": SoftDirty.name, "CRCKPT_FRAMES": str(frames)}
        self.environment = os.environ | words
        self._target = target

    def dirty(self, place: int, pages: int = PAGES_OF_A_HUGE_PAGE, before: int = 0, meanwhile: str = "") -> set[int]:
        """How many of these pages read as written, by each way to ask. Some are read before by themselves.

        `meanwhile` is what CRIU makes the process do after it has read its maps.
        """
        numbers = (str(number) for number in (self._target.pid, place, pages, before))
        words = ["/usr/bin/python3", "-S", "-c", READER, *numbers]
        with running(*words, ready="seen", env=self.environment) as reading:
            self._target.do(meanwhile or "pass")
            output, _ = reading.communicate("go on\n", timeout=60)
            assert reading.returncode == 0
        Path(f"/proc/{self._target.pid}/clear_refs").write_text("4")
        return set(json.loads(output).values())


@pytest.fixture
def dumps(library: Path, target: StatementRunner, tmp_path: Path) -> Dumps:
    return Dumps(library, target, tmp_path / "frames")


def filled(target: StatementRunner, advice: int) -> int:
    place = target.do(ALIGNED_AREA.format(advice))
    target.do(f"write({place}, range({PAGES_OF_A_HUGE_PAGE}))")
    return place


def test_unmoved_pages_are_clean_and_new_ones_dirty(dumps: Dumps, target: StatementRunner) -> None:
    place = filled(target, SMALL_PAGES)
    assert dumps.dirty(place) == {PAGES_OF_A_HUGE_PAGE}, "nothing was kept yet"
    assert dumps.dirty(place) == {0}
    assert dumps.dirty(place + 4096 * 100, 100) == {0}, "a part"
    # A scan tells regions, which count as a whole.
    assert dumps.dirty(place) - {PAGES_OF_A_HUGE_PAGE} == {PAGES_OF_A_HUGE_PAGE - 100}, "of the rest nothing was kept"


def test_result_does_not_depend_on_the_ranges_that_are_read(dumps: Dumps, target: StatementRunner) -> None:
    """CRIU reads small maps together with the begin of a large one, which it reads as a whole then."""
    place = filled(target, SMALL_PAGES)
    for before in (100, 0, 300, 7, 100):
        found = dumps.dirty(place, before=before)
    assert found == {0}


def test_pages_moved_with_their_page_table_are_dirty(dumps: Dumps, target: StatementRunner) -> None:
    """If both addresses are aligned, mremap moves the whole page table with its bits."""
    place, to = filled(target, SMALL_PAGES), filled(target, SMALL_PAGES)
    low, pages = min(place, to), abs(place - to) // 4096 + PAGES_OF_A_HUGE_PAGE
    dumps.dirty(low, pages)
    target.do(f"moved({place}, {PAGES_OF_A_HUGE_PAGE}, {to})")
    assert dumps.dirty(to) == {PAGES_OF_A_HUGE_PAGE}


def test_discarded_memory_read_in_a_huge_page_is_dirty(dumps: Dumps, target: StatementRunner) -> None:
    place = filled(target, HUGE_PAGE)
    assert dumps.dirty(place) == {PAGES_OF_A_HUGE_PAGE}
    target.do(f"drop({place}, {PAGES_OF_A_HUGE_PAGE}); result = ctypes.c_char.from_address({place}).value[0]")
    assert dumps.dirty(place).isdisjoint({0})
    assert dumps.dirty(place) == {0}, "it is as it was"


def test_pages_merged_and_split_by_the_kernel_are_dirty(dumps: Dumps, target: StatementRunner) -> None:
    count = Path(f"/proc/{target.pid}/ksm_merging_pages")
    place = filled(target, MERGEABLE)
    dumps.dirty(place)
    assert dumps.dirty(place) == {0}
    with merging():
        wait_for(lambda: int(count.read_text()) >= PAGES_OF_A_HUGE_PAGE, "pages to be merged")
        # One page is not moved: the others are merged with it.
        assert dumps.dirty(place) <= {PAGES_OF_A_HUGE_PAGE, PAGES_OF_A_HUGE_PAGE - 1, PAGES_OF_A_HUGE_PAGE - 2}
        target.do(f"LIBC.madvise(ctypes.c_void_p({place}), {PAGES_OF_A_HUGE_PAGE * 4096}, 13)")  # MADV_UNMERGEABLE
    assert dumps.dirty(place) == {PAGES_OF_A_HUGE_PAGE}


def test_memory_of_split_or_merged_mappings_is_dirty(dumps: Dumps, target: StatementRunner) -> None:
    place = filled(target, SMALL_PAGES)
    dumps.dirty(place)
    assert dumps.dirty(place) == {0}
    for protection in (1, 3):
        target.do(protected(place, protection))
        assert dumps.dirty(place) == {PAGES_OF_A_HUGE_PAGE}
        assert dumps.dirty(place) == {0}


def test_memory_in_place_of_another_mapping_is_dirty(dumps: Dumps, target: StatementRunner) -> None:
    """Only the permissions differ: nothing is merged or split."""
    place = filled(target, SMALL_PAGES)
    target.do(protected(place, 1))
    dumps.dirty(place)
    assert dumps.dirty(place) == {0}
    target.do(protected(place, 5))
    assert dumps.dirty(place, 100) == {100}


def test_mappings_merged_by_criu_are_dirty(dumps: Dumps, target: StatementRunner) -> None:
    """CRIU makes all memory readable before it opens the page map, and undoes that. The kernel may lose bits."""
    place = filled(target, SMALL_PAGES)
    rest = place + 100 * 4096
    target.do(f"{protected(place, 0)}; {protected(rest, 1, 412)}")
    for _ in range(3):
        assert dumps.dirty(place, meanwhile=protected(place, 1)) == {PAGES_OF_A_HUGE_PAGE}
        target.do(protected(place, 0))


def test_mappings_merged_by_the_program_are_dirty(dumps: Dumps, target: StatementRunner) -> None:
    place = filled(target, SMALL_PAGES)
    rest = place + 100 * 4096
    target.do(f"{protected(place, 0)}; {protected(rest, 1, 412)}")
    dumps.dirty(place, meanwhile=protected(place, 1))
    assert dumps.dirty(place) == {PAGES_OF_A_HUGE_PAGE}
    assert dumps.dirty(place) == {0}


def test_memory_made_readable_by_criu_is_clean(dumps: Dumps, target: StatementRunner) -> None:
    """The pages stay clean if no mappings are merged."""
    place = filled(target, SMALL_PAGES)
    for expected in (PAGES_OF_A_HUGE_PAGE, 0, 0):
        target.do(protected(place, 0))
        assert dumps.dirty(place, meanwhile=protected(place, 1)) == {expected}


def test_kernel_that_keeps_soft_dirty_bits_when_mappings_are_merged_is_trusted(
    dumps: Dumps, target: StatementRunner
) -> None:
    place = filled(target, SMALL_PAGES)
    dumps.environment["CRCKPT_JOINED_ARE_DIRTY"] = "1"
    dumps.dirty(place)
    target.do(protected(place, 1))
    assert dumps.dirty(place) == {0}


def protected(place: int, protection: int, pages: int = 100) -> str:
    """Code that gives the first pages at an address another protection."""
    return f"LIBC.mprotect(ctypes.c_void_p({place}), ctypes.c_size_t({pages * 4096}), {protection})"
