"""Blockers and warnings of restores, for the images of a real tree and hosts written by hand."""

from __future__ import annotations

import stat

import pytest
from msgspec.structs import replace
from restore_plans import LOG, PLAIN, only_blocker, with_changed

from crckpt.host.proc import IdUser
from crckpt.preflight.restore.checks import RestoreVerdict, judge_restore
from crckpt.preflight.restore.host import HostState, PlannedRestore


@pytest.mark.parametrize("ours", ["4.1.1", "3.17.1", "4.1-rc1"])
def test_older_criu_is_refused(planned_restore: PlannedRestore, host: HostState, ours: str) -> None:
    blocker = only_blocker(judge_restore(replace(planned_restore, crius=("4.2.1", ours)), host))
    assert blocker.startswith(f"older-criu: CRIU 4.2.1 made this checkpoint, and this older one, {ours}, ")


@pytest.mark.parametrize(
    "crius",
    [
        ("4.1.1", "4.2.1"),
        ("4.2.1", "4.2"),
        ("4.9", "4.10"),
        ("unknown", "4.1"),
        ("4.2", ""),
        ("9" * 5000 + ".1", "4.2.1"),
    ],
)
def test_criu_of_unknown_age_may_restore(
    planned_restore: PlannedRestore, host: HostState, crius: tuple[str, str]
) -> None:
    assert judge_restore(replace(planned_restore, crius=crius), host).blockers == ()


def test_restore_on_an_unchanged_host_has_no_findings(planned_restore: PlannedRestore, host: HostState) -> None:
    assert judge_restore(planned_restore, host) == RestoreVerdict((), (), (), needs_terminal=False)


def test_all_blockers_of_a_restore_are_reported_at_once(planned_restore: PlannedRestore, host: HostState) -> None:
    worse = with_changed(with_changed(host, PLAIN, mode=stat.S_IFREG | 0o600, size=1), LOG, size=99)
    worse = replace(worse, owners=(IdUser(7993, "PID", 7993, 1, "x", "running"),))
    blocker_keys = [finding.key for finding in judge_restore(planned_restore, worse).blockers]
    assert sorted(blocker_keys) == ["file-mode", "file-shrunk", "log-grown", "pid-taken"]
