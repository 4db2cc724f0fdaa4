"""The kernel's soft-dirty bits of another process, where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest
from target_processes import StatementRunner

from crckpt.host.syscalls import memory_trials, pagemap
from crckpt.host.syscalls.pagemap import AddressRange, private_anonymous

PAGE = 4096


def test_soft_dirty_bits_show_written_pages(target: StatementRunner) -> None:
    place = target.do("result = area(64); write(result, range(64))")
    if not memory_trials.tracks_by_soft_dirty():
        rows = pagemap.find_soft_dirty(target.pid, private_anonymous(target.pid))
        assert len(rows) == 0, "a kernel without the bits sets none"
        pytest.skip("this kernel has no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)")
    Path(f"/proc/{target.pid}/clear_refs").write_text("4")
    target.do("write(result, (3, 40))")
    rows = pagemap.find_soft_dirty(target.pid, [AddressRange(place, place + 64 * PAGE)])
    assert rows.tolist() == [[place + page * PAGE, place + (page + 1) * PAGE] for page in (3, 40)]


def test_crckpt_detects_whether_the_kernel_misses_writes_in_merged_mappings(target: StatementRunner) -> None:
    """Linux 6.0 and later miss such writes. crckpt tries it on three pages, this test on three areas of 64 pages."""
    if not memory_trials.tracks_by_soft_dirty():
        pytest.skip("this kernel has no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)")
    protect = "LIBC.mprotect(ctypes.c_void_p(result + {} * PAGE), ctypes.c_size_t(64 * PAGE), {})"
    place = target.do(f"result = area(192); write(result, range(192)); {protect.format(0, 1)}")
    Path(f"/proc/{target.pid}/clear_refs").write_text("4")
    anew = "LIBC.mmap(ctypes.c_void_p(result + 128 * PAGE), ctypes.c_size_t(64 * PAGE), 3, 0x32, -1, ctypes.c_long(0))"
    changes = "; ".join(protect.format(*change) for change in ((64, 0), (64, 3), (0, 3)))
    target.do(f"{anew}; {changes}; write(result, range(64, 128), 2)")
    seen = pagemap.find_soft_dirty(target.pid, [AddressRange(place + 64 * PAGE, place + 128 * PAGE)])
    assert (len(seen) == 0) == memory_trials.soft_dirty_misses_joined()
