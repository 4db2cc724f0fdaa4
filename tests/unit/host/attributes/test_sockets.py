"""Options of sockets are recorded where they are unusual, and a record sets nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from crckpt.errors import IntegrityError
from crckpt.host.attributes.multicast import GroupSearch, Membership
from crckpt.host.attributes.sockets import SocketRecord, read_sockets, restore_socket
from crckpt.preflight.attribute_record import read_attribute_record

RECVERR, USER_TIMEOUT = 11, 18
USER = (1234, 2345)


@pytest.fixture
def existing_inodes() -> set[int]:
    """Inodes of the sockets that this process has already."""
    found: set[int] = set()
    list(_read(found, 1))
    return found


def _read(known: set[int], inside: int, *, everything: bool = False) -> Iterator[SocketRecord]:
    return read_sockets(os.getpid(), inside, known, GroupSearch(60), everything=everything)


def _record(held: socket.socket, **more: object) -> SocketRecord:
    usual = SocketRecord(1, held.fileno(), 7, held.family, held.type, held.proto or socket.IPPROTO_UDP)
    return msgspec.structs.replace(usual, **more)


@pytest.fixture
def new_udp_socket() -> Iterator[socket.socket]:
    """A UDP socket with default options."""
    with socket.socket(type=socket.SOCK_DGRAM) as made:
        yield made


def test_socket_with_defaults_is_not_recorded(existing_inodes: set[int], new_udp_socket: socket.socket) -> None:
    assert list(_read(existing_inodes, 1)) == []
    assert os.fstat(new_udp_socket.fileno()).st_ino in existing_inodes


def test_socket_is_recorded_once_with_its_unusual_options(
    existing_inodes: set[int], new_udp_socket: socket.socket
) -> None:
    new_udp_socket.setsockopt(socket.IPPROTO_IP, RECVERR, 1)
    with new_udp_socket.dup() as again:
        (found,) = _read(existing_inodes, 77)
        assert found.fd in (new_udp_socket.fileno(), again.fileno())
    assert found.options == {"IP_RECVERR": (1,)}
    assert (found.pid, found.inode) == (77, os.fstat(new_udp_socket.fileno()).st_ino)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give sockets to other users")


def test_sockets_are_recorded_with_their_users(existing_inodes: set[int], new_udp_socket: socket.socket) -> None:
    us = (os.geteuid(), os.getegid())
    one, other = socket.socketpair()
    with one, other:
        found = {each.fd: each for each in _read(existing_inodes, 1, everything=True)}
        assert [found[each.fileno()].maker for each in (new_udp_socket, one)] == [us, us]
        assert [found[each.fileno()].owner for each in (new_udp_socket, one)] == [(), us]


@as_root
def test_unix_socket_gets_the_user_and_group_that_created_it() -> None:
    with socket.socket(socket.AF_UNIX) as held:
        assert list(restore_socket(held.fileno(), _record(held, protocol=0, maker=USER))) == []
        assert os.fstat(held.fileno())[4:6] == USER


@as_root
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_NETLINK])
def test_socket_created_by_root_for_a_user_is_reported_as_lost(family: int) -> None:
    """Packet rules and netlink use the user who opened the file of the socket."""
    with socket.socket(family, socket.SOCK_DGRAM) as held:
        protocol = 17 if family == socket.AF_INET else 0
        (lost,) = restore_socket(held.fileno(), _record(held, protocol=protocol, maker=USER))
        assert lost.protects
        assert "user 0 has made it, instead of user 1234" in lost.why


@as_root
@pytest.mark.parametrize(("peer", "protects"), [(USER, [True]), ((1234, 0), [True]), ((0, 0), [])])
def test_peer_that_seems_to_be_root_is_reported_as_lost(peer: tuple[int, int], protects: list[bool]) -> None:
    one, other = socket.socketpair()
    with one, other:
        lost = list(restore_socket(one.fileno(), _record(one, protocol=0, maker=(0, 0), owner=peer)))
        assert [each.protects for each in lost] == protects


def test_socket_of_another_kind_is_left_alone() -> None:
    with socket.socket() as tcp:
        assert (
            list(restore_socket(tcp.fileno(), _record(tcp, kind=socket.SOCK_DGRAM, options={"IP_RECVERR": (1,)}))) == []
        )
        assert tcp.getsockopt(socket.IPPROTO_IP, RECVERR) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("IP_MULTICAST_IF", (999, -1)), ("IP_RECVERR", ()), ("IP_RECVERR", (1, 2)), ("SO_TXTIME", (1,) * 60)],
)
def test_invalid_values_of_socket_options_are_not_set(
    new_udp_socket: socket.socket, name: str, value: tuple[int, ...]
) -> None:
    """Any user may have made the record."""
    (lost,) = restore_socket(new_udp_socket.fileno(), _record(new_udp_socket, options={name: value}))
    assert lost.title == name


@pytest.mark.parametrize(
    "member",
    [
        Membership("lo", "no address"),
        Membership("lo", "::"),
        Membership("lo", "127.0.0.1"),
        Membership("x" * 64, "239.1.2.3"),
        Membership("lo", "239.1.2.3", False, ("::1",)),
        Membership("lo", "\ud800"),
    ],
)
def test_invalid_multicast_groups_are_not_joined(new_udp_socket: socket.socket, member: Membership) -> None:
    (lost,) = restore_socket(new_udp_socket.fileno(), _record(new_udp_socket, memberships=(member,)))
    assert lost.title.startswith("the membership in ")


def test_socket_options_that_are_not_in_the_list_are_not_set(new_udp_socket: socket.socket) -> None:
    assert (
        list(
            restore_socket(
                new_udp_socket.fileno(),
                _record(new_udp_socket, options={"SO_ATTACH_FILTER": (1,)}, interfaces={"X": "lo"}),
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "more",
    [
        {"options": {"IP_TTL": [1 << 40]}},
        {"options": {"IP_TTL": [1] * 1000}},
        {"options": {"IP_TTL": "x"}},
        {"interfaces": {"IP_UNICAST_IF": "x" * 1000}},
        {"memberships": [{"interface": "lo", "group": "239.1.2.3", "sources": ["1.2.3.4"] * 5000}]},
        {"fd": "x"},
    ],
)
def test_socket_record_with_a_number_out_of_range_is_refused(more: dict[str, object]) -> None:
    place = {"pid": 1, "fd": 3, "inode": 7, "family": 2, "kind": 2, "protocol": 17}
    details: dict[str, object] = {"attributes": {"cpus": [0], "processes": [], "sockets": [place | more]}}
    with pytest.raises(IntegrityError, match="damaged"):
        read_attribute_record(details)
