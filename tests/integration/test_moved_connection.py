"""A tree and its connection move to another host's network, with the address that its client talks to."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from command import Crckpt
from networks import DEVICE, WITHIN_S, Capture, Lan, Talker, lan
from remote import remote
from stopped_trees import JOB
from trees import wait_for

from crckpt.helper.address_guard.client import guarded_addresses
from crckpt.host.network.address import HostAddress, parse_address
from crckpt.migrate.addresses import leave_source, unlocked_source
from crckpt.model import MoveId, RunId
from crckpt.store import Repository

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

PORT = 7070
SERVER = f"""
import socket, threading
listener = socket.create_server(('%s', {PORT}), family=socket.%s)
def echo():
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
threading.Thread(target=echo, daemon=True).start()
"""


@pytest.fixture
def hosts() -> Iterator[Lan]:
    with lan() as hosts:
        yield hosts


@pytest.mark.parametrize("text", [f"10.77.0.100/24@{DEVICE}", f"fd77::100/64@{DEVICE}"], ids=["ipv4", "ipv6"])
def test_connection_moves_with_its_tree(crckpt: Crckpt, hosts: Lan, text: str) -> None:
    """The client sees a pause, but no reset, and no answer is lost or wrong."""
    address = parse_address(text)
    extra = ("nodad",) if address.family == 6 else ()
    hosts.source.run("ip", "address", "add", address.interface, "dev", DEVICE, *extra)
    with hosts.source.entered(), remote() as program, closing(Capture(hosts.client)) as capture:
        program.ask(SERVER % (address.ip, "AF_INET6" if address.family == 6 else "AF_INET"))
        with closing(Talker(hosts.client, address.ip, PORT)) as talker:
            talker.wait_for_answers()
            with hosts.destination.entered(), guarded_addresses((address,), MoveId(secrets.token_hex(8))) as guarded:
                guarded.claim()
                stop(crckpt, hosts, program.pid)
                program.wait_gone()
                crckpt.run("restore", JOB, "--detach")
                leave(crckpt, hosts, address)
                assert guarded.release() == ""
                assert guarded.keep() == ""
            talker.wait_for_answers()
            assert capture.resets() == []
            assert hosts.client.neighbour(address.ip) == hosts.destination.mac
            assert hosts.source.tables() == hosts.destination.tables() == ""


@pytest.mark.parametrize("text", [f"10.77.0.100/24@{DEVICE}", f"fd77::100/64@{DEVICE}"], ids=["ipv4", "ipv6"])
def test_client_does_not_notice_a_killed_restore_at_the_destination(crckpt: Crckpt, hosts: Lan, text: str) -> None:
    """crckpt is killed while the restored tree waits. The tree at the source goes on answering its client."""
    address = parse_address(text)
    extra = ("nodad",) if address.family == 6 else ()
    hosts.source.run("ip", "address", "add", address.interface, "dev", DEVICE, *extra)
    with hosts.source.entered(), remote() as program, closing(Capture(hosts.client)) as capture:
        program.ask(SERVER % (address.ip, "AF_INET6" if address.family == 6 else "AF_INET"))
        with closing(Talker(hosts.client, address.ip, PORT)) as talker:
            talker.wait_for_answers()
            crckpt.run("dump", str(program.pid), JOB, "--tcp", "keep")
            with hosts.destination.entered(), guarded_addresses((address,), MoveId(secrets.token_hex(8))) as guarded:
                guarded.claim()
                words = ("restore", JOB, "--detach", "--new-pid-namespace", "--no-preflight")
                with crckpt.start(*words, CRCKPT_STOP_AT="hold.commit") as restore:
                    stopped = psutil.Process(restore.pid)
                    wait_for(lambda: stopped.status() == psutil.STATUS_STOPPED, WITHIN_S, "the hold")
                    assert has_connection(hosts, address)
                    restore.kill()
                # The address guard ends before CRIU has ended the restored tree.
            assert not has_connection(hosts, address)
            assert hosts.destination.tables() == ""
            talker.wait_for_answers()
            assert capture.sent_by(hosts.destination.mac, address.ip) == []
            assert capture.resets() == []


def has_connection(hosts: Lan, address: HostAddress) -> bool:
    """Whether the destination has a connection of that address."""
    with hosts.destination.entered():
        # Of this thread: the namespace of the process is another one.
        rows = Path(f"/proc/thread-self/net/tcp{'6' if address.family == 6 else ''}").read_text().splitlines()[1:]
    return any(row.split()[3] == "01" for row in rows)


def stop(crckpt: Crckpt, hosts: Lan, pid: int) -> None:
    with hosts.source.entered():
        crckpt.run("dump", str(pid), JOB, "--stop", "--tcp", "keep")


def leave(crckpt: Crckpt, hosts: Lan, address: HostAddress) -> None:
    """Leave the network as the source does after the commit: with the network lock of the dump."""
    run_id = Repository.open(crckpt.store).checkpoints()[-1].run_id
    with hosts.source.entered():
        assert "CRIU-" in hosts.source.tables()
        leave_source((address,))
        with unlocked_source(RunId(run_id or "")):
            pass
