"""Connections of a program that moves with its address, other than those that only go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hosts import PROGRAMS, PYTHON, CannotMakeLab, NumberedClient, Result, TwoHosts, wait_for
from migrations import JOB, SERVER, STORE
from two_hosts import two_hosts

HALF_CLOSED = "half_closed.py"
REFUSED = 24


@pytest.fixture(scope="module")
def lab() -> Iterator[TwoHosts]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with two_hosts() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@contextmanager
def started(lab: TwoHosts, program: str, *words: str) -> Iterator[int]:
    """A server on the source: its PID. Afterwards nothing of it is left."""
    pid = lab.start("source", PYTHON, PROGRAMS / program, *words)
    try:
        wait_for(lambda: ":9000" in lab.run("source", "ss", "-Hltn").out, "the server to listen")
        yield pid
    finally:
        lab.end(program)
        for host in ("source", "destination"):
            lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)


def move(lab: TwoHosts, pid: int, address: str, *options: str) -> Result:
    """Move the server to the destination with its address and connections."""
    words = (str(pid), "destination", JOB, "--tcp", "keep", "--move-ip", address, *options)
    return lab.run("source", "crckpt", "migrate", *words)


@pytest.mark.parametrize("version", [4, 6])
def test_half_closed_connection_gets_all_its_data(lab: TwoHosts, version: int) -> None:
    """The data that either side has sent before it ended comes, and then its end."""
    try:
        with started(lab, HALF_CLOSED, "serve", lab.service(version), "9000") as pid:
            client = lab.open("client", PYTHON, PROGRAMS / HALF_CLOSED, "ask", lab.service(version), "9000")
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "ready\n"
                move(lab, pid, f"{lab.services[version]}@{lab.device}")
                output, _ = client.communicate("\n")
            finally:
                client.kill()
            assert {line.partition(": ")[2] for line in output.splitlines()} == {"all"}
    finally:
        lab.bring_service_back(version)


def test_closed_connection_sends_its_last_bytes_before_the_freeze(lab: TwoHosts) -> None:
    """It cannot move, as the server has closed it: what the client has not read then is lost, and crckpt says so."""
    address, begin = f"{lab.services[4]}@{lab.device}", "/srv/shared/begin"
    clients = []
    try:
        with started(lab, HALF_CLOSED, "serve", lab.service(4), "9000") as pid:
            for file in (begin, f"{begin}-never"):
                words = (PYTHON, PROGRAMS / HALF_CLOSED, "wait", lab.service(4), "9000", file)
                clients.append(client := lab.open("client", *words))
                assert client.stdout is not None
                assert client.stdout.readline() == "ready\n"
            output = move(lab, pid, address, "--check").out
            assert re.search(r"still have [0-9,]+ bytes to send \([0-9.:]+ -> [0-9.:]+ and 1 more\)", output)
            output = move(lab, pid, address, "--before-freeze", f"touch {begin}").out
            assert re.search(r"still had [0-9,]+ bytes to send \([0-9.:]+ -> [0-9.:]+\), which are lost", output)
            assert clients[0].stdout is not None
            assert clients[0].stdout.readline() == "all\n"
    finally:
        for client in clients:
            client.kill()
            client.communicate()
        lab.bring_service_back(4)
        lab.run("source", "rm", "-f", begin)


@pytest.mark.parametrize("version", [4, 6])
def test_connections_that_begin_during_the_move_are_served(lab: TwoHosts, version: int) -> None:
    """None is refused or reset, and none keeps the program from being moved."""
    moved = f"{lab.services[version]}@{lab.device}"
    client = None
    try:
        with started(lab, SERVER, lab.service(version), "9000") as pid:
            client = lab.open("client", PYTHON, PROGRAMS / "many_clients.py", lab.service(version), "9000")
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            move(lab, pid, moved)
            report = json.loads(client.communicate()[0])
            assert report["errors"] == []
            assert report["served"] > 0
            for host in ("source", "destination"):
                assert lab.run(host, "nft", "list", "tables").out == ""
    finally:
        if client is not None:
            client.kill()
        lab.bring_service_back(version)


def test_ipv6_address_that_stays_here_is_refused_before_the_move(lab: TwoHosts) -> None:
    """The kernel binds a socket to an IPv6 address that its host does not have: nobody would reach the program."""
    with started(lab, SERVER, "fd77::1", "9000") as pid:
        output = lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, "--check", status=REFUSED).err
        assert "destination: it does not have the TCP address [fd77::1]:9000" in output


def test_ipv4_address_of_an_ipv6_socket_is_refused_before_the_move(lab: TwoHosts) -> None:
    with started(lab, SERVER, "::", "9000") as pid:
        address = lab.run("source", "getent", "ahostsv4", "source").out.split()[0]
        client = NumberedClient(lab, address, 9000)
        try:
            client.wait_for_replies()
            words = ("crckpt", "migrate", str(pid), "destination", JOB, "--tcp", "keep", "--check")
            output = lab.run("source", *words, status=REFUSED).err
        finally:
            client.close()
        assert "destination: it does not have the TCP address [::ffff:" in output
        assert f"--move-ip {address}/" in output


def test_other_program_at_the_address_is_reported(lab: TwoHosts) -> None:
    """Its clients would get resets. A socket of the program itself, and one at another address, are none of those."""
    service = lab.service(4)
    moved = f"{lab.services[4]}@{lab.device}"
    with started(lab, SERVER, service, "9000") as pid:
        assert "another program" not in move(lab, pid, moved, "--check").out
        lab.start("source", PYTHON, PROGRAMS / SERVER, service, "9001")
        wait_for(lambda: ":9001" in lab.run("source", "ss", "-Hltn").out, "the other server to listen")
        note = f"another program has a socket at {service}, too (tcp {service}:9001)"
        assert note in move(lab, pid, moved, "--check").out
