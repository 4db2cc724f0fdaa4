"""Process features of this host, tried as root and without rights; nothing is left behind."""

from __future__ import annotations

import os

import pytest
from other_user import as_user
from own_process import children

from crckpt.host.probes import tasks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to try it as root and as another user")

ROOT = 0


def test_check_finds_that_root_can_choose_a_free_pid() -> None:
    before = children()
    found = tasks.pid_selection()
    assert found.state == "ok"
    assert found.found.startswith("restored processes get their old PIDs (tried with PID ")
    assert children() == before


def test_check_finds_that_another_user_cannot_choose_a_pid() -> None:
    def check() -> None:
        found = tasks.pid_selection()
        assert (found.state, found.consequence, found.fix) == (
            "limited",
            "only root can restore",
            "sudo crckpt doctor",
        )
        assert not children()

    as_user(check)


def test_check_finds_that_root_can_suspend_seccomp_filters() -> None:
    def check() -> None:
        assert tasks.seccomp_suspension().state == "ok"
        assert not children()

    as_user(check, ROOT)


def test_check_finds_that_another_user_cannot_suspend_seccomp_filters() -> None:
    def check() -> None:
        found = tasks.seccomp_suspension()
        assert (found.state, found.fix) == ("missing", "sudo crckpt doctor")
        assert found.found == "seccomp filters cannot be suspended: Operation not permitted"
        assert not children()

    as_user(check)


def test_child_of_the_ptrace_trial_is_ended() -> None:
    def check() -> None:
        found = tasks.ptrace_scope()
        assert found.state == "ok"
        assert found.found.startswith("crckpt can attach to other processes (")
        assert not children()

    as_user(check, ROOT)


def test_kernel_can_describe_memory() -> None:
    """CRIU needs this call for every dump."""
    assert tasks.checkpoint_restore().state == "ok"
