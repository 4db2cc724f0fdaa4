"""An address moves from one host to another while a client uses it all the time."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from networks import DEVICE, WITHIN_S, Capture, Echo, Lan, Talker, lan
from trees import PROGRAMS, runs, wait_for

from crckpt.errors import HostCannot
from crckpt.helper.address_guard.client import guarded_addresses
from crckpt.host.network import claim as steps
from crckpt.host.network.address import HostAddress, parse_address
from crckpt.host.network.claim import lift_fence, raise_fence
from crckpt.migrate.addresses import check_destination, check_source, leave_source, unlocked_source
from crckpt.model import MoveId, RunId

IPV4 = parse_address(f"10.77.0.100/24@{DEVICE}")
IPV6 = parse_address(f"fd77::100/64@{DEVICE}")
IPV4_AND_IPV6 = (IPV4, IPV6)
PORT = 7070

# A network lock like that of CRIU, for all connections from the port.
LOCK = f"""
add table inet {{table}}
add chain inet {{table}} output {{{{ type filter hook output priority 0; }}}}
add rule inet {{table}} output tcp sport {PORT} drop
"""
STEPS = (
    "guard.start",
    *(f"{moment}:{number}" for number in (1, 2, 3) for moment in ("guard.ask", "guard.answer")),
)

families = pytest.mark.parametrize("address", IPV4_AND_IPV6, ids=("ipv4", "ipv6"))


@pytest.fixture
def hosts() -> Iterator[Lan]:
    """Three hosts; the source has both addresses."""
    with lan() as hosts:
        for address in IPV4_AND_IPV6:
            extra = ("nodad",) if address.family == 6 else ()
            hosts.source.run("ip", "address", "add", address.interface, "dev", DEVICE, *extra)
        yield hosts


@pytest.fixture
def move_id() -> str:
    return secrets.token_hex(8)


class Scene:
    """A client that talks to a server at an address of the source. `capture` has all its frames."""

    def __init__(self, hosts: Lan, address: HostAddress, stack: ExitStack) -> None:
        self.hosts = hosts
        self.ip = address.ip
        self.server = stack.enter_context(closing(Echo(hosts.source, self.ip, PORT)))
        self.capture = stack.enter_context(closing(Capture(hosts.client)))
        self.arriving = stack.enter_context(closing(Capture(hosts.destination)))
        self.talker = stack.enter_context(closing(Talker(hosts.client, self.ip, PORT)))
        self.talker.wait_for_answers()

    def ask_again(self) -> None:
        """Let the client forget the hardware address; wait until it has a connection again."""
        self.hosts.client.run("ip", "neigh", "flush", "dev", DEVICE)
        self.talker.wait_for_answers()

    def misdirect(self) -> None:
        """Send the client's packets to the destination until some have arrived, then again to the source."""
        before = len(self.arriving.for_address(self.ip))
        for mac in (self.hosts.destination.mac, self.hosts.source.mac):
            self.hosts.client.run("ip", "neigh", "replace", self.ip, "lladdr", mac, "dev", DEVICE, "nud", "reachable")
            wait_for(lambda: len(self.arriving.for_address(self.ip)) > before, WITHIN_S, "packets")
        self.talker.wait_for_answers()

    def assert_unnoticed(self) -> None:
        """Check that the destination has sent nothing, and that the connection continues."""
        assert self.hosts.client.neighbour(self.ip) == self.hosts.source.mac
        assert self.capture.claims(self.ip, self.hosts.destination.mac) == []
        assert self.capture.sent_by(self.hosts.destination.mac, self.ip) == []
        assert self.capture.resets() == []
        self.talker.wait_for_answers()


@contextmanager
def talking(hosts: Lan, address: HostAddress) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(hosts, address, stack)


def is_clean(hosts: Lan) -> bool:
    """Whether the destination has neither addresses of the move nor a fence."""
    there = hosts.destination.addresses()
    return not hosts.destination.tables() and not there & {address.interface for address in IPV4_AND_IPV6}


@families
def test_moved_address_is_invisible_until_it_is_released(hosts: Lan, address: HostAddress, move_id: str) -> None:
    """The destination's address is invisible behind the fence. After the release the neighbours know it at once."""
    with talking(hosts, address) as scene, hosts.destination.entered():
        assert check_destination(IPV4_AND_IPV6) == ()
        with guarded_addresses(IPV4_AND_IPV6, MoveId(move_id)) as guarded:
            guarded.claim()
            assert {each.interface for each in IPV4_AND_IPV6} <= hosts.destination.addresses()
            with closing(Echo(hosts.destination, address.ip, PORT)) as server:
                scene.ask_again()
                scene.misdirect()
                scene.assert_unnoticed()
                scene.ask_again()
                scene.assert_unnoticed()
                # The tree has ended at the source. Like CRIU's lock, this table drops the packets of its connections.
                with hosts.source.entered():
                    hosts.source.run("nft", LOCK.format(table=f"CRIU-{move_id}"))
                    assert check_source(IPV4_AND_IPV6) == ()
                    leave_source(IPV4_AND_IPV6)
                    assert f"CRIU-{move_id}" in hosts.source.tables()
                    with unlocked_source(RunId(move_id)):
                        pass
                    assert f"CRIU-{move_id}" not in hosts.source.tables()
                assert not {each.interface for each in IPV4_AND_IPV6} & hosts.source.addresses()
                assert guarded.release() == ""
                count = 6 if address.family == 4 else 3
                mac = hosts.destination.mac
                wait_for(lambda: len(scene.capture.claims(address.ip, mac)) >= count, WITHIN_S, "announcements")
                assert hosts.client.neighbour(address.ip) == mac
                # The connection is not restored here, so the kernel answers the client's packets with a reset.
                wait_for(lambda: bool(scene.talker.error), WITHIN_S, "the client's packets to come here")
                with closing(Talker(hosts.client, address.ip, PORT)) as talker:
                    talker.wait_for_answers()
                assert server.accepted == 1
                assert guarded.keep() == ""
                assert hosts.destination.tables() == ""
        wait_for(lambda: not runs(guarded.guard), WITHIN_S, "the guard to end")
    assert {each.interface for each in IPV4_AND_IPV6} <= hosts.destination.addresses()


@families
def test_neighbours_do_not_notice_an_aborted_move_of_an_address(hosts: Lan, address: HostAddress, move_id: str) -> None:
    """The address is removed before the fence."""
    with talking(hosts, address) as scene, hosts.destination.entered():
        with guarded_addresses(IPV4_AND_IPV6, MoveId(move_id)) as guarded:
            guarded.claim()
            with closing(Echo(hosts.destination, address.ip, PORT)):
                scene.misdirect()
        assert is_clean(hosts)
        scene.ask_again()
        scene.misdirect()
        scene.assert_unnoticed()
    assert not runs(guarded.guard)


@contextmanager
def mover(hosts: Lan, move_id: str, last: str, *, killed_at: str = "") -> Iterator[subprocess.Popen[str]]:
    """A crckpt on the destination that takes the addresses over, up to the step `last`."""
    command = (sys.executable, str(PROGRAMS / "moved_addresses.py"), move_id, last, *map(str, IPV4_AND_IPV6))
    environment = {**os.environ, "CRCKPT_KILL_AT": killed_at} if killed_at else None
    with (
        hosts.destination.entered(),
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def read_guard(process: subprocess.Popen[str]) -> int:
    """The PID of the guard; 0 if the process ended before it had one."""
    assert process.stdout is not None
    words = process.stdout.readline().split()
    return int(words[1]) if words else 0


@pytest.mark.parametrize("killed_at", STEPS)
def test_killed_move_of_an_address_leaves_no_address_fence_or_guard(hosts: Lan, move_id: str, killed_at: str) -> None:
    """No address, fence or guard is left, whatever the last step was."""
    with talking(hosts, IPV4) as scene, mover(hosts, move_id, "keep", killed_at=killed_at) as process:
        guard = read_guard(process)
        assert process.wait(WITHIN_S) == -signal.SIGKILL
        if guard:
            wait_for(lambda: not runs(guard), WITHIN_S, "the guard to end")
        if killed_at == "guard.answer:3":
            # The guard had been asked to keep the addresses.
            assert {each.interface for each in IPV4_AND_IPV6} <= hosts.destination.addresses()
            assert hosts.destination.tables() == ""
            return
        assert is_clean(hosts)
        if killed_at not in ("guard.answer:2", "guard.ask:3"):
            # After the release there would be a tree with this connection.
            scene.assert_unnoticed()


@pytest.mark.parametrize("last", ["claim", "release"])
def test_address_guard_ignores_the_signals_at_the_end_of_its_session(hosts: Lan, move_id: str, last: str) -> None:
    with mover(hosts, move_id, last) as process:
        guard = read_guard(process)
        assert process.stdout is not None
        while process.stdout.readline().strip() != last:
            continue
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(guard, number)
        process.kill()
        wait_for(lambda: not runs(guard), WITHIN_S, "the guard to end")
        assert is_clean(hosts)


def test_crckpt_removes_the_address_itself_if_its_guard_was_killed(hosts: Lan, move_id: str) -> None:
    with hosts.destination.entered():
        with guarded_addresses(IPV4_AND_IPV6, MoveId(move_id)) as guarded:
            guarded.claim()
            os.kill(guarded.guard, signal.SIGKILL)
            with pytest.raises(HostCannot, match="has ended"):
                guarded.release()
        assert is_clean(hosts)


def test_address_left_by_a_killed_crckpt_and_its_killed_guard_is_removed(hosts: Lan, move_id: str) -> None:
    with mover(hosts, move_id, "claim") as process:
        guard = read_guard(process)
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait(WITHIN_S)
        assert not is_clean(hosts)
        for _ in range(2):
            steps.give_up(IPV4_AND_IPV6, MoveId(move_id))
            assert is_clean(hosts)


def test_address_that_the_destination_already_had_is_not_removed(hosts: Lan, move_id: str) -> None:
    hosts.destination.run("ip", "address", "add", IPV4.interface, "dev", DEVICE)
    with hosts.destination.entered():
        with (
            pytest.raises(HostCannot, match="is already on eth0"),
            guarded_addresses(IPV4_AND_IPV6, MoveId(move_id)) as guarded,
        ):
            guarded.claim()
        assert hosts.destination.addresses() >= {IPV4.interface}
        assert hosts.destination.tables() == ""


def test_address_is_removed_again_if_the_next_one_cannot_be_added(hosts: Lan, move_id: str) -> None:
    """The second address is for a device that does not exist."""
    addresses = (IPV4, HostAddress(IPV6.ip, IPV6.length, "eth9"))
    with hosts.destination.entered():
        with pytest.raises(HostCannot, match="eth9"), guarded_addresses(addresses, MoveId(move_id)) as guarded:
            guarded.claim()
        assert is_clean(hosts)


def test_address_guard_does_not_use_a_pid_of_the_tree(hosts: Lan, move_id: str) -> None:
    with hosts.destination.entered(), guarded_addresses(IPV4_AND_IPV6, MoveId(move_id)) as guarded:
        taken = range(guarded.guard + 1, guarded.guard + 20)
        with guarded_addresses(IPV4_AND_IPV6, MoveId("0" * 16), taken) as another:
            assert another.guard not in taken


def test_address_guard_keeps_no_unrelated_file_or_directory_open(hosts: Lan, move_id: str, tmp_path: Path) -> None:
    """The guard process has no terminal, no directory, and only the sockets for crckpt and for the two addresses."""
    with (
        hosts.destination.entered(),
        (tmp_path / "file").open("w"),
        guarded_addresses(IPV4_AND_IPV6, MoveId(move_id)) as guarded,
    ):
        guarded.claim()
        links = [link.readlink() for link in Path(f"/proc/{guarded.guard}/fd").iterdir()]
        kinds = [str(link).partition(":")[0] for link in links]
        assert sorted(kinds) == ["/dev/null", "/dev/null", "/dev/null", "socket", "socket", "socket"]
        assert Path(f"/proc/{guarded.guard}/cwd").readlink() == Path("/")
        assert os.getsid(guarded.guard) == guarded.guard


@families
def test_fence_of_an_address_stays_until_the_ended_tree_has_no_connection(
    hosts: Lan, address: HostAddress, move_id: str
) -> None:
    """The fence stays until a tree that is being ended has no connection: the peer must not get its last packets."""
    seen: list[bool] = []

    def end_late(*connections: socket.socket) -> None:
        wait_for(lambda: address.interface not in hosts.destination.addresses(), WITHIN_S, "the address to go")
        seen.append(move_id in hosts.destination.tables())
        for connection in connections:
            # Without time to linger, nothing stays in the kernel (socket(7)).
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    family = socket.AF_INET6 if address.family == 6 else socket.AF_INET
    with hosts.destination.entered():
        with guarded_addresses((address,), MoveId(move_id)) as guarded:
            guarded.claim()
            with socket.create_server((address.ip, PORT), family=family) as listener:
                # Over loopback, the fence drops its packets, too.
                lift_fence((address,), MoveId(move_id))
                ours = socket.create_connection((address.ip, PORT), timeout=WITHIN_S)
                theirs, _ = listener.accept()
            raise_fence((address,), MoveId(move_id))
            ending = threading.Thread(target=end_late, args=(ours, theirs))
            ending.start()
        ending.join(WITHIN_S)
        assert seen == [True]
        assert is_clean(hosts)


@families
def test_host_without_a_route_gets_one_before_the_restore(hosts: Lan, address: HostAddress, move_id: str) -> None:
    """CRIU connects the sockets of kept connections again, which takes a route."""
    destination = hosts.destination
    version = f"-{address.family}"
    destination.run("ip", version, "address", "flush", "dev", DEVICE, "scope", "global")
    show = ("ip", version, "route", "show", address.prefix)
    with destination.entered():
        assert destination.run(*show) == ""
        with guarded_addresses((address,), MoveId(move_id)) as guarded:
            guarded.claim()
            assert DEVICE in destination.run(*show)
            assert destination.tables()
        assert destination.run(*show) == ""
        assert is_clean(hosts)
