"""The better tracking method is used, unless it misses writes or a process refuses it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from program_trackers import needs_write_protection
from target_processes import StatementRunner

from crckpt.host import proc
from crckpt.tracking.choose_tracker import Trials, choose_tracker
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.uffd_wp import UffdWp


@needs_write_protection
@pytest.mark.parametrize("miss", [True, False])
def test_write_protection_is_used_where_soft_dirty_misses_writes(
    target: StatementRunner, claims: Path, miss: bool
) -> None:
    """A process that cannot be entered also needs soft-dirty bits."""
    # The trials are replaced, so that all kinds of kernels are tested on any kernel.
    trials = Trials(lambda: True, lambda: miss, find_criu_refusal=lambda _criu, _tracker: "")
    assert chosen(target, claims, trials) == (UffdWp.name if miss else SoftDirty.name)
    child = target.do("pipe = os.pipe(); result = os.fork(); result or os.read(pipe[0], 1)")
    for pid in (child, target.pid):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
        assert chosen(target, claims, trials) == SoftDirty.name
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert chosen(target, claims, trials) == (UffdWp.name if miss else SoftDirty.name)


def chosen(target: StatementRunner, claims: Path, trials: Trials) -> str:
    """The name of the chosen tracker, which has a reason."""
    root = proc.read_process(target.pid)
    assert root is not None
    tracker, _ = choose_tracker(root, Path("criu"), claims, trials)
    assert tracker is not None
    tracker.close()
    return tracker.name
