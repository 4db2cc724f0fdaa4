"""What integration tests share: the command itself with a store of the test's own, and a host left as it was found."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CLONE_NEWNET = 0x40000000  # linux/sched.h
LIBC = ctypes.CDLL(None, use_errno=True)


PROGRAM = Path(sys.executable).with_name("crckpt")


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        document: dict[str, Any] = json.loads(self.out)
        return document


@dataclass(frozen=True)
class Crckpt:
    """The installed command with the store `store`."""

    store: Path

    @property
    def environment(self) -> dict[str, str]:
        """What the command is started with."""
        return os.environ | {"CRCKPT_STORE": str(self.store)}

    def run(self, *words: str, status: int = 0, **environment: str) -> Said:
        """Run it to its end, which must be `status`."""
        done = subprocess.run(
            [str(PROGRAM), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment | environment,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, f"crckpt {words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start it in a session of its own; the test waits for it."""
        return subprocess.Popen(
            [str(PROGRAM), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | environment,
            start_new_session=True,
        )


@pytest.fixture
def crckpt(tmp_path: Path) -> Crckpt:
    """The command, with an empty store."""
    return Crckpt(tmp_path / "store")


@pytest.fixture(scope="session")
def network_namespace() -> Iterator[int]:
    """A network namespace with nothing but loopback, as a descriptor."""
    host = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if LIBC.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "the integration tests need root: cannot make a network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    ours = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    enter(host)
    yield ours
    os.close(ours)
    os.close(host)


@pytest.fixture(autouse=True)
def own_network(request: pytest.FixtureRequest, network_namespace: int) -> Iterator[None]:
    """Ports, connections and packet filters of a test are nobody else's, except where it is marked `host_network`."""
    if "host_network" in request.keywords:
        yield
        return
    host = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    enter(network_namespace)
    yield
    enter(host)
    os.close(host)


def enter(namespace: int) -> None:
    """Move this thread, and what it starts, into a network namespace."""
    if LIBC.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


@pytest.fixture(autouse=True)
def no_network_lock_is_left(own_network: None) -> Iterator[None]:
    """CRIU's tables in the packet filter would drop packets of whoever comes next: a test that leaves one fails."""
    before = network_locks()
    yield
    left = network_locks() - before
    for table in left:
        subprocess.run(["nft", "delete", "table", "inet", table], check=True)
    assert not left, f"network locks are left: {left}"


def network_locks() -> frozenset[str]:
    """Names of CRIU's tables in this network namespace."""
    shown = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    return frozenset(line.split()[-1] for line in shown.splitlines() if "CRIU-" in line)
