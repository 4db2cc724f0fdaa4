"""Sockets of a tree: connections that need a choice, and ends outside."""

from __future__ import annotations

import socket

from dump_plans import CONNECTION, FILE, TWO_PROCESSES, keys, plan, why, with_files
from msgspec.structs import replace

from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.observe.sockets import OutsideEnd


def test_established_connections_without_a_tcp_option_are_a_blocker() -> None:
    observation = replace(TWO_PROCESSES, connections=(CONNECTION, replace(CONNECTION, fd=8)))
    undecided = plan(observation)
    assert keys(undecided.blockers) == ["tcp", "tcp"]
    assert undecided.blockers[0].what == (
        "PID 100 has fd 7 connected over TCP: 127.0.0.1:80 -> 127.0.0.1:4000 (ESTABLISHED)"
    )
    assert undecided.options.tcp is None
    keep, close = plan(observation, "keep"), plan(observation, "close")
    assert (keep.options.tcp, keep.blockers, why(keep, "--tcp-established")) == ("keep", (), "2 TCP connections")
    assert (close.options.tcp, close.blockers, why(close, "--tcp-close")) == ("close", (), "2 TCP connections")


def test_tcp_option_is_passed_to_criu_for_connections_made_later() -> None:
    """A connection may be made before the freeze: then CRIU must know what to do."""
    listening = replace(TWO_PROCESSES, sockets=(SocketKind(100, 3, socket.AF_INET6, socket.SOCK_STREAM, 0),))
    close, keep = plan(TWO_PROCESSES, "close"), plan(listening, "keep")
    assert (close.options.tcp, why(close, "--tcp-close")) == ("close", "a TCP connection may be made before the freeze")
    assert (keep.options.tcp, why(keep, "--tcp-established")) == (
        "keep",
        "a TCP connection may be made before the freeze",
    )
    # The option needs a network lock, so it is not passed without sockets, or where the lock would fail.
    assert plan(TWO_PROCESSES, "keep").options.tcp is None
    assert plan(listening, "keep", nftables=False).options.tcp is None
    assert plan(listening).options.tcp is None


def test_ktls_connection_must_be_closed() -> None:
    """CRIU would restore the connection in plain text."""
    encrypted = SocketKind(100, 3, socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, layer="tls")
    observation = replace(TWO_PROCESSES, connections=(CONNECTION,), sockets=(encrypted,))
    (blocker,) = plan(observation, "keep").blockers
    assert blocker.key == "tcp-layer"
    assert "fd 3 of PID 100" in blocker.what
    assert plan(observation, "close").blockers == ()


def test_keeping_connections_needs_lock_support() -> None:
    observation = replace(TWO_PROCESSES, connections=(CONNECTION,))
    assert keys(plan(observation, "keep", nftables=False).blockers) == ["network-lock"]
    assert plan(observation, "close", nftables=False).blockers == ()
    assert plan(TWO_PROCESSES, "keep", nftables=False).blockers == ()


def test_datagram_sockets_add_an_option() -> None:
    sockets = with_files(replace(FILE, target="socket:[777]"), replace(FILE, target="socket:nonsense"))
    found = plan(replace(sockets, datagram_sockets=frozenset({777, 778})))
    assert found.options.ext_unix_sk
    assert why(found, "--ext-unix-sk")
    assert not plan(replace(sockets, datagram_sockets=frozenset({778}))).options.ext_unix_sk


def test_unix_connection_to_the_outside_is_a_blocker() -> None:
    observation = replace(
        TWO_PROCESSES, outside_ends=(OutsideEnd(100, 1, "/run/journal/stdout"), OutsideEnd(101, 4, ""))
    )
    messages = [finding.what for finding in plan(observation).blockers]
    assert messages == [
        "descriptor 1 of PID 100 (a unix socket to /run/journal/stdout) is connected to a process outside the tree",
        "descriptor 4 of PID 101 (a unix socket) is connected to a process outside the tree",
    ]


def test_journal_socket_has_a_known_remedy() -> None:
    ends = (OutsideEnd(100, 1, "/run/systemd/journal/stdout"),)
    (found,) = plan(replace(TWO_PROCESSES, outside_ends=ends)).blockers
    assert found.what.endswith(") is connected to the journal of systemd, which is outside the tree")
    assert "StandardOutput=append:" in found.remedy
