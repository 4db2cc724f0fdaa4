"""Connections of a program that moves with its address, other than those that only go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hosts import PROGRAMS, PYTHON, CannotMakeLab, Result, TwoHosts, wait_for
from migrations import JOB, STORE
from two_hosts import two_hosts

HALF_CLOSED = "half_closed.py"


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


def move(lab: TwoHosts, pid: int, address: str) -> Result:
    """Move it to the destination with its address and connections."""
    return lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, "--tcp", "keep", "--move-ip", address)


@pytest.mark.parametrize("version", [4, 6])
def test_half_closed_connection_gets_all_its_data(lab: TwoHosts, version: int) -> None:
    """What either side has sent before it ended its data comes, and then the end of it."""
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
