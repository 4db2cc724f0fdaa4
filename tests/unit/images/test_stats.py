"""stats-dump and stats-restore."""

from __future__ import annotations

import pytest
from image_trees import one

from crckpt.errors import IntegrityError
from crckpt.images import magics, wire
from crckpt.images.inventory import read_dump_stats


def test_statistics_of_a_dump_are_read_from_the_image(images: dict[str, bytes]) -> None:
    stats = read_dump_stats(images["stats-dump"])
    assert 0 < stats.memwrite_time < stats.frozen_time < 60_000_000
    assert 0 < stats.pages_written <= stats.pages_scanned
    assert stats.shared_pages_written == 1


def test_restore_statistics_are_not_dump_statistics() -> None:
    numbers = wire.encode((number, wire.VARINT, number * 10) for number in range(1, 5))
    data = one(magics.STATS, (2, wire.BYTES, numbers))
    with pytest.raises(IntegrityError, match=r"stats-dump: has no statistics of a dump"):
        read_dump_stats(data)
