"""A disk that the benchmark limits is as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmark import disk
from benchmark.setting import MEBIBYTE
from checkout import TESTS

FAST_BYTES_PER_S = 1 << 40
HERE = TESTS / "unit"


@pytest.fixture
def limited() -> Iterator[int]:
    """An earlier limit of the disk in bytes per second, too high to matter."""
    if not disk.can_be_limited(HERE):
        pytest.skip("the kernel cannot limit a disk here: that needs root and the blkio controller of cgroup v1")
    before = disk.rate(HERE)
    disk.set_limit(HERE, FAST_BYTES_PER_S)
    yield FAST_BYTES_PER_S
    disk.set_limit(HERE, before)


@pytest.mark.parametrize("failure", [None, SystemExit(143), KeyboardInterrupt()])
def test_benchmark_restores_the_disk_limit_also_after_a_failure(limited: int, failure: BaseException | None) -> None:
    try:
        with disk.limited(HERE):
            assert disk.rate(HERE) == disk.USUAL * MEBIBYTE
            if failure:
                raise failure
    except (SystemExit, KeyboardInterrupt):
        pass
    assert disk.rate(HERE) == limited


def test_benchmark_cannot_limit_the_disk_of_files_that_are_on_none() -> None:
    assert not disk.can_be_limited(Path("/proc"))
