"""Network features of this host: with and without rights, and with missing or failing tools."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from other_user import as_user
from own_process import descriptors
from trees import open_workdir

from crckpt.host.probes import network
from crckpt.host.probes.trial import Fact
from crckpt.host.process import run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to try it as root and as another user")

ROOT = 0


def test_doctor_says_that_connections_cannot_be_saved_without_root() -> None:
    def check() -> None:
        found = network.tcp_repair()
        assert found.state == "missing"
        assert found.found == "TCP connections cannot be saved: Operation not permitted (needs CAP_NET_ADMIN)"
        assert found.fix == "sudo crckpt doctor"

    as_user(check)


def test_doctor_says_that_root_can_save_connections() -> None:
    before = descriptors()
    assert network.tcp_repair().state == "ok"
    assert descriptors() == before


@pytest.mark.usefixtures("commands")
def test_check_of_the_network_reports_a_missing_tool() -> None:
    found = network.lock_by_iptables()
    assert (found.state, found.found) == ("missing", "iptables is not installed")


def test_check_of_the_network_quotes_the_error_of_a_failing_tool(commands: Path) -> None:
    tool = commands / "iptables"
    tool.write_text("#!/bin/sh\necho 'no such table' >&2\necho 'more' >&2\nexit 3\n")
    tool.chmod(0o755)

    def check() -> None:
        network_before = Path("/proc/self/ns/net").readlink()
        found = network.lock_by_iptables()
        assert (found.state, found.found) == ("missing", f"{tool}: no such table")
        # The probe ran in a network namespace of its own.
        assert Path("/proc/self/ns/net").readlink() != network_before

    as_user(check, ROOT)


def test_network_locks_are_not_tried_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        found = network.lock_by_iptables()
        assert (found.state, found.found, found.fix) == (
            "limited",
            "not tried: the trial needs root",
            "sudo crckpt doctor",
        )

    with open_workdir() as commands:
        (commands / "iptables").write_text("#!/bin/sh\nexit 0\n")
        (commands / "iptables").chmod(0o755)
        monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(commands))
        as_user(check)


def test_moving_an_address_is_probed_with_and_without_rights() -> None:
    """The probe runs in a network namespace of its own, where it is harmless."""

    def check() -> None:
        found = network.move_ip()
        assert (found.state, found.fix) == ("ok", "")

    as_user(check, ROOT)
    as_user(lambda: _assert_not_tried(network.move_ip()))


def _assert_not_tried(found: Fact) -> None:
    assert (found.state, found.fix) == ("missing", "sudo crckpt doctor")
