"""Refuse a tracker."""

from __future__ import annotations

from pathlib import Path

from crckpt.criu.find import find
from crckpt.host.syscalls import memory_trials
from crckpt.tracking.refusals import find_criu_refusal
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.uffd_wp import UffdWp


def test_criu_without_library_support_does_not_track(tmp_path: Path) -> None:
    """Such a CRIU is setuid, linked statically, or started by a script that drops the variable."""
    real, drops = find(None, None).path, tmp_path / "criu"
    drops.write_text(f'#!/bin/sh\nunset CRCKPT_CRIU_PRELOAD LD_PRELOAD\nexec {real} "$@"\n')
    drops.chmod(0o755)
    tracker = SoftDirty.name if memory_trials.tracks_by_soft_dirty() else UffdWp.name
    assert find_criu_refusal(real, tracker) == ""
    why = f"{drops} does not load crckpt's preload library: it starts without it"
    assert find_criu_refusal(drops, tracker) == why
