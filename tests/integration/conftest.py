"""What integration tests share: the command itself with a store of the test's own, and a host left as it was found."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command import Crckpt, network_locks
from oracle import compile_program, find_criu
from rounds import Target, build_program
from stopped import ObstructedCriu, orphans_adopted, program
from trees import READY_S, Tree, started, wait_for

CLONE_NEWNET = 0x40000000  # linux/sched.h
LIBC = ctypes.CDLL(None, use_errno=True)


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
def no_network_lock_is_left(request: pytest.FixtureRequest, own_network: None) -> Iterator[None]:
    """CRIU's tables in the packet filter would drop packets of whoever comes next: a test that leaves one fails."""
    before = network_locks()
    yield
    left = network_locks() - before
    if left and "host_network" in request.keywords:
        # There are others, whose locks are gone when they are done.
        with suppress(AssertionError):
            wait_for(lambda: not left & network_locks(), READY_S, "others to lift their network locks")
        left &= network_locks()
    for table in left:
        subprocess.run(["nft", "delete", "table", "inet", table], check=True)
    assert not left, f"network locks are left: {left}"


@pytest.fixture(scope="module")
def adopted() -> Iterator[None]:
    """Zombies do not hold the tests of a module up."""
    with orphans_adopted():
        yield


@pytest.fixture(scope="module")
def obstructed(tmp_path_factory: pytest.TempPathFactory) -> ObstructedCriu:
    """A CRIU that can be made to fail or to wait."""
    return ObstructedCriu(tmp_path_factory.mktemp("criu"))


@pytest.fixture(scope="session")
def rounds_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/programs/rounds.c, compiled."""
    return build_program(tmp_path_factory.mktemp("rounds"))


@pytest.fixture
def target(rounds_program: Path, tmp_path: Path) -> Iterator[Target]:
    """It, running."""
    (tmp_path / "work").mkdir()
    running = Target(rounds_program, tmp_path / "work")
    yield running
    running.end()


@pytest.fixture
def tree() -> Iterator[Tree]:
    """tests/programs/counter.py, running."""
    with started(program("counter")) as found:
        yield found


@pytest.fixture(scope="session")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/programs/churn.c, compiled."""
    return compile_program(tmp_path_factory.mktemp("churn"))


@pytest.fixture(scope="session")
def criu() -> Path:
    """The CRIU that crckpt finds."""
    return find_criu()
