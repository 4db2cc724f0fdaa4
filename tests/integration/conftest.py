"""Fixtures of integration tests: the command with a store of the test's own, and trees to checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Crckpt
from networks import inside
from oracle import compile_program, find_criu
from rounds import Target, build_program
from stopped_trees import ObstructedCriu, orphans_adopted, program
from trees import Tree, started

HOST_NETWORK = Path("/proc/1/fd/9")  # scripts/isolated


@pytest.fixture
def crckpt(tmp_path: Path) -> Crckpt:
    """The command, with an empty store."""
    return Crckpt(tmp_path / "store")


@pytest.fixture(scope="module")
def host_network() -> Iterator[None]:
    """The machine's network, to install packages."""
    with HOST_NETWORK.open("rb") as outside, inside(outside.fileno()):
        yield


@pytest.fixture(scope="module")
def orphans_are_reaped() -> Iterator[None]:
    """Child processes left over by crckpt are reaped, so that no test waits for them."""
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
    """The program tests/programs/rounds.c, running."""
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
