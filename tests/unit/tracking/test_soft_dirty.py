"""The kernel's soft-dirty bits of another process, where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from entering import Told, told

from crckpt.host import pagemap
from crckpt.host.pagemap import Map, private_anonymous

PAGE = 4096


@pytest.fixture
def target() -> Iterator[Told]:
    with told() as process:
        yield process


def test_the_bits_tell_which_pages_were_written(target: Told) -> None:
    place = target.do("told = area(64); write(told, range(64))")
    if not pagemap.tracks_by_soft_dirty():
        rows = pagemap.soft_dirty(target.pid, private_anonymous(target.pid))
        assert len(rows) == 0, "a kernel without the bits sets none"
        pytest.skip("this kernel has no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)")
    Path(f"/proc/{target.pid}/clear_refs").write_text("4")
    target.do("write(told, (3, 40))")
    rows = pagemap.soft_dirty(target.pid, [Map(place, place + 64 * PAGE)])
    assert rows.tolist() == [[place + page * PAGE, place + (page + 1) * PAGE] for page in (3, 40)]
