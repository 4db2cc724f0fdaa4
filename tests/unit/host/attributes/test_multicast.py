"""Memberships in multicast groups are found as the kernel has them, and made again on another socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest
from growth import spend_once

from crckpt.host.attributes.multicast import (
    GroupSearch,
    Membership,
    find_groups,
    interface_index,
    interface_name,
    join,
)
from crckpt.host.budget import Budget

SOON: Final = 60
GROUP, OTHER_GROUP, GROUP_6 = "239.83.1.7", "239.83.1.8", "ff05::83:7"
SOURCES = tuple(f"127.0.83.{number}" for number in range(1, 4))
SOURCES_6 = tuple(f"fd00:83::{number:x}" for number in range(1, 31))


@pytest.fixture
def socket_ipv4() -> Iterator[socket.socket]:
    with socket.socket(type=socket.SOCK_DGRAM) as made:
        yield made


@pytest.fixture
def socket_ipv6() -> Iterator[socket.socket]:
    try:
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    except OSError as error:
        pytest.skip(f"IPv6: {error.strerror}")
    with made:
        yield made


def memberships(held: socket.socket) -> set[Membership]:
    found, is_cut = GroupSearch(SOON).find(os.getpid(), held)
    assert not is_cut
    return set(found)


def joined() -> set[str]:
    return {group for _, _, group in find_groups(os.getpid(), Budget(SOON))}


@pytest.mark.parametrize(
    "wanted",
    [
        (Membership("lo", GROUP),),
        (Membership("lo", GROUP), Membership("lo", OTHER_GROUP, sources=SOURCES)),
        (Membership("lo", GROUP, excludes=False, sources=SOURCES),),
    ],
    ids=["plain", "blocked sources", "chosen sources"],
)
def test_multicast_memberships_are_restored(socket_ipv4: socket.socket, wanted: tuple[Membership, ...]) -> None:
    assert memberships(socket_ipv4) == set()
    assert list(join(socket_ipv4, wanted)) == []
    assert memberships(socket_ipv4) == set(wanted)


def test_all_sources_of_a_multicast_membership_are_read_in_several_reads(socket_ipv6: socket.socket) -> None:
    wanted = (Membership("lo", GROUP_6, excludes=False, sources=SOURCES_6),)
    assert list(join(socket_ipv6, wanted)) == []
    (found,) = memberships(socket_ipv6)
    assert (found.group, found.excludes, set(found.sources)) == (GROUP_6, False, set(SOURCES_6))
    assert len(found.sources) == len(SOURCES_6)


def test_multicast_membership_of_another_socket_is_not_found(socket_ipv4: socket.socket) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        assert list(join(other, (Membership("lo", GROUP),))) == []
        assert GROUP in joined()
        assert memberships(socket_ipv4) == set()
        assert memberships(other) == {Membership("lo", GROUP)}
    assert GROUP not in joined()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Membership("lo", "127.0.0.1"), "Invalid argument"),
        (Membership("lo", "no address"), "illegal IP address"),
        (Membership("none0", GROUP), "No such device"),
        (Membership("lo", GROUP, sources=("x",)), "illegal IP address"),
        (Membership("l\0o", "::x"), ""),
    ],
)
def test_multicast_membership_that_fails_is_reported_and_the_others_are_joined(
    socket_ipv4: socket.socket, wrong: Membership, why: str
) -> None:
    ((title, reason),) = join(socket_ipv4, (wrong, Membership("lo", OTHER_GROUP)))
    assert title == f"the membership in {wrong.group} on {wrong.interface}"
    assert why in reason
    assert reason
    assert Membership("lo", OTHER_GROUP) in memberships(socket_ipv4)


def test_multicast_groups_joined_by_the_kernel_are_ignored() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as held:
        assert list(join(held, (Membership("lo", GROUP),))) == []
        assert not joined() & {"224.0.0.1", "ff02::1"}


def test_interfaces_of_multicast_memberships_have_names_and_numbers(socket_ipv4: socket.socket) -> None:
    for number, name in socket.if_nameindex():
        assert interface_name(socket_ipv4, number) == name
        assert interface_index(socket_ipv4, name) == number
    with pytest.raises(OSError, match="No such device"):
        interface_index(socket_ipv4, "none0")


@contextmanager
def groups_of_others(count: int) -> Iterator[None]:
    """Join so many other groups by other sockets, as any user can."""
    with ExitStack() as stack:
        for start in range(0, count, 20):  # igmp_max_memberships
            other = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            groups = (Membership("lo", f"239.84.{at // 256}.{at % 256}") for at in range(start, start + 20))
            assert list(join(other, tuple(groups))) == []
        yield


def test_multicast_groups_of_other_sockets_are_not_read_if_the_own_are_known(socket_ipv4: socket.socket) -> None:
    """Other users can join any number of groups, and a frozen program must not wait until all are read."""
    own = (Membership("lo", GROUP), Membership("lo", OTHER_GROUP))
    assert list(join(socket_ipv4, own)) == []
    before = GroupSearch(SOON)
    before.find(os.getpid(), socket_ipv4)

    def spend(joined: tuple[tuple[int, int, str], ...]) -> float:
        search = GroupSearch(SOON, joined)
        return min(spend_once(lambda: search.find(os.getpid(), socket_ipv4)) for _ in range(5))

    alone = spend(before.joined)
    with groups_of_others(4000):
        assert spend(before.joined) < 10 * alone < spend_once(lambda: GroupSearch(SOON).find(os.getpid(), socket_ipv4))
        found, is_cut = GroupSearch(SOON, before.joined).find(os.getpid(), socket_ipv4)
        assert (set(found), is_cut) == (set(own), False)


def test_search_among_multicast_groups_of_others_ends_and_says_that_it_is_incomplete(
    socket_ipv4: socket.socket,
) -> None:
    assert list(join(socket_ipv4, (Membership("lo", GROUP),))) == []
    with groups_of_others(4000):
        search = GroupSearch(0.0)
        assert search.find(os.getpid(), socket_ipv4) == ((), True)
        assert search.find(os.getpid(), socket_ipv4) == ((), True)
        known = GroupSearch(0.0, ((socket.IPPROTO_IP, 1, GROUP),))
        assert known.find(os.getpid(), socket_ipv4) == ((Membership("lo", GROUP),), False)
