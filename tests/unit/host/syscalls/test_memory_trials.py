"""Page tracking is tried for real, and leaves nothing behind whatever comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from own_process import descriptors

from crckpt.errors import HostCannot
from crckpt.host.syscalls import memory_trials


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("trial", [memory_trials.tracks_by_soft_dirty, memory_trials.soft_dirty_misses_joined])
def test_soft_dirty_trial_is_repeatable(trial: Callable[[], bool]) -> None:
    trial()
    before = len(descriptors()), mappings()
    answers = {trial() for _ in range(20)}
    assert len(answers) == 1
    assert len(descriptors()) == before[0]
    assert mappings() <= before[1] + 1


def test_write_protection_trial_is_repeatable_and_leaves_no_descriptor() -> None:
    before = len(descriptors())
    try:
        works = [memory_trials.tracks_by_write_protection() for _ in range(20)]
    except HostCannot as error:
        assert len(descriptors()) == before
        pytest.skip(error.message)
    assert all(works), "the kernel took the requests and then did not tell of a written page"
    assert len(descriptors()) == before
