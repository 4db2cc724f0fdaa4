"""Sockets of a restored program keep their options and memberships; losses are reported."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import pytest
from command import Crckpt
from stopped_trees import JOB, orphans_adopted, program, restored_by, stopped
from trees import Tree, started, wait_for

from crckpt.host.attributes.sockets import OPTIONS

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

INTERFACE: Final = "crckpt-m0"
REFUSED: Final = 24
KINDS: Final = (
    "tcp4-new",
    "tcp4-listening",
    "tcp4-connected",
    "tcp6-listening",
    "tcp6-connected",
    "udp4-bound",
    "udp4-connected",
    "udp6-bound",
    "udp6-connected",
    "udp4-member",
    "udp6-member",
    "udp4-filtered",
    "raw4",
    "raw6",
    "unix-stream",
    "unix-datagram",
    "netlink",
    "packet",
)
CONNECTION_OPTIONS: Final = ("SO_INCOMING_CPU", "TCP_MAXSEG", "TCP_FASTOPEN", "TCP_FASTOPEN_NO_COOKIE")
"""They follow the traffic, or say nothing any more."""

NEWER_OPTIONS: Final = {
    "SO_INQ",
    "TCP_RTO_MAX_MS",
    "TCP_RTO_MIN_US",
    "TCP_DELACK_MAX_US",
    "SO_PASSRIGHTS",
    "SO_RCVPRIORITY",
}
"""Options that not all kernels have."""
UNSETTABLE_OPTIONS: Final = {"SO_BUSY_POLL_BUDGET", "PACKET_TX_HAS_OFF"}
"""Options that hardware or another option must allow."""


class SocketReports(NamedTuple):
    """What a program said of each socket, before its dump and after its restore; and what crckpt said."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    unusual: Mapping[str, list[str]]
    warnings: list[str]


@pytest.fixture(scope="module", params=["detached", "foreground", "pid namespace"])
def restored_options(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SocketReports:
    """A program with all kinds of sockets, dumped, ended and restored."""
    crckpt = Crckpt(tmp_path_factory.mktemp("sockets") / "store")
    case = program("socket_options", *KINDS)
    with orphans_adopted(), stopped(crckpt, case, "--tcp", "keep") as tree:
        before, counters = read_options(tree), tree.counters()
        unusual = json.loads((tree.workdir / "unusual.json").read_text())
        with restored_by(crckpt, str(request.param)) as warnings:
            tree.wait_growth(counters)
            return SocketReports(before, read_options(tree), unusual, warnings)


def read_options(tree: Tree) -> dict[str, Any]:
    return {name: facts["options"] for name, facts in tree.facts().items() if name}


@pytest.mark.parametrize("kind", KINDS)
def test_socket_options_are_restored(restored_options: SocketReports, kind: str) -> None:
    """Multicast memberships and a locked socket filter are restored, too."""
    ignored = CONNECTION_OPTIONS if "connected" in kind else ()
    before, after = (
        {name: value for name, value in values[kind].items() if name not in ignored}
        for values in (restored_options.before, restored_options.after)
    )
    assert after == before
    assert restored_options.warnings == []


def test_each_socket_option_has_a_test_value(restored_options: SocketReports) -> None:
    unusual = {name for names in restored_options.unusual.values() for name in names}
    assert OPTIONS.keys() - unusual - NEWER_OPTIONS - UNSETTABLE_OPTIONS <= {
        "SO_LOCK_FILTER",
        "SO_TIMESTAMP",
        "SO_TIMESTAMPNS",
    }
    assert restored_options.before["udp4-filtered"]["SO_LOCK_FILTER"] == 1
    assert len(restored_options.before["udp4-member"]["memberships"]) == 3
    assert len(restored_options.before["udp6-member"]["memberships"]) == 4


def test_restore_with_closed_connections_gives_no_warning_about_their_options(crckpt: Crckpt) -> None:
    with stopped(crckpt, program("socket_options", "tcp4-connected", "udp4-bound"), "--tcp", "close") as tree:
        before, counters = read_options(tree), tree.counters()
        result = crckpt.run("restore", JOB, "--detach", "--json").document["result"]
        tree.wait_growth(counters)
        assert result["warnings"] == []
        assert read_options(tree)["udp4-bound"] == before["udp4-bound"]


def test_options_are_restored_from_a_dump_without_stop(crckpt: Crckpt) -> None:
    with started(program("socket_options", "udp6-member", "udp4-bound")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        before = read_options(tree)
        tree.end()
        tree.wait_gone()
        reports = list(tree.workdir.glob("status*.json"))
        for report in reports:
            report.unlink()
        crckpt.run("restore", JOB, "--detach")
        wait_for(lambda: all(report.is_symlink() for report in reports), 60, "the program to report again")
        assert read_options(tree) == before


def test_rehearsal_restores_socket_options_without_warnings(crckpt: Crckpt) -> None:
    with _interface(), started(program("socket_options", "udp4-elsewhere", "udp4-bound")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        result = crckpt.run("rehearse", JOB, "--seconds", "0.2", "--json").document["result"]
        assert result["passed"], result
        assert result["warnings"] == []


@contextmanager
def _interface() -> Iterator[None]:
    if subprocess.run(["ip", "link", "add", INTERFACE, "type", "bridge"], check=False).returncode:
        pytest.skip("no network interface can be made here")
    try:
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["ip", "link", "delete", INTERFACE], check=True)


def _remove_interface() -> None:
    subprocess.run(["ip", "link", "delete", INTERFACE], check=True)


def test_multicast_membership_finds_its_renumbered_interface_by_name(crckpt: Crckpt) -> None:
    with _interface(), stopped(crckpt, program("socket_options", "udp4-elsewhere")) as tree:
        counters = tree.counters()
        _remove_interface()
        with _interface():
            result = crckpt.run("restore", JOB, "--detach", "--json").document["result"]
            tree.wait_growth(counters)
            assert result["warnings"] == []
            listed = subprocess.run(["ip", "maddress", "show", "dev", INTERFACE], capture_output=True, text=True)
            assert "239.7.7.7" in listed.stdout


def test_membership_on_a_missing_interface_is_a_warning(crckpt: Crckpt) -> None:
    with _interface(), stopped(crckpt, program("socket_options", "udp4-elsewhere")) as tree:
        counters = tree.counters()
        _remove_interface()
        result = crckpt.run("restore", JOB, "--detach", "--json").document["result"]
        tree.wait_growth(counters)
        (warning,) = result["warnings"]
        assert f"the membership in 239.7.7.7 on {INTERFACE} of descriptor" in warning
        assert ": No such device" in warning


def _owner(tree: Tree) -> tuple[int, int]:
    """The user and group of the listener, as the kernel reports them to a client."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0crckpt-owner-{tree.pid}")
        _, user, group = struct.unpack("=iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return user, group


@pytest.mark.parametrize("how", ["detached", "foreground", "pid namespace"])
def test_clients_see_the_user_of_a_restored_listening_socket(crckpt: Crckpt, how: str) -> None:
    """CRIU makes all sockets as root, so clients would take the server for one of root's."""
    with stopped(crckpt, program("unix_owner")) as tree:
        counters = tree.counters()
        with restored_by(crckpt, how) as warnings:
            tree.wait_growth(counters)
            assert warnings == []
            assert _owner(tree) == (1234, 2345)


def _stop_needs_option(crckpt: Crckpt, tree: Tree, why: str) -> None:
    """Check that `dump --stop` needs --force, and that a plain dump warns with the same reason."""
    error = crckpt.run("dump", str(tree.pid), JOB, "--stop", status=REFUSED).err
    assert why in error
    assert "--force" in error
    tree.wait_growth(tree.counters())
    assert why in crckpt.run("dump", str(tree.pid), JOB).out
    crckpt.run("dump", str(tree.pid), JOB, "--stop", "--force")
    tree.wait_gone()


def test_dump_with_stop_is_refused_if_the_peer_of_a_unix_socket_would_look_like_root(crckpt: Crckpt) -> None:
    with started(program("unix_owner", "peer")) as tree:
        _stop_needs_option(crckpt, tree, "is connected to a process of user 3456; after a restore, that peer")
        counters = tree.counters()
        result = crckpt.run("restore", JOB, "--detach", status=REFUSED)
        assert "is connected to a process of user 3456; after a restore, that peer" in result.err
        assert "--allow-weaker" in result.err
        restored = crckpt.run("restore", JOB, "--detach", "--allow-weaker", "--json").document["result"]
        assert "user 3456" in " ".join(restored["warnings"])
        tree.wait_growth(counters)
        assert _owner(tree) == (1234, 2345)


def test_dump_reports_the_loss_of_tcp_md5_keys(crckpt: Crckpt) -> None:
    """Without its keys, a server that accepts only signed segments would accept any segment."""
    with started(program("socket_options", "tcp4-signed")) as tree:
        _stop_needs_option(crckpt, tree, "accepts only signed TCP segments")
        counters = tree.counters()
        assert "accepts only signed TCP segments" in crckpt.run("restore", JOB, "--detach", status=REFUSED).err
        restored = crckpt.run("restore", JOB, "--detach", "--allow-weaker", "--json").document["result"]
        assert "accepts only signed TCP segments" in " ".join(restored["warnings"])
        tree.wait_growth(counters)
