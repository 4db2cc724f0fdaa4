"""A pytest plugin: a test leaves nothing behind, and uses no store but its own.

Processes can be told to be a test's own only in namespaces that no one else uses: `scripts/isolated` makes them, and
scripts/test runs all tests in them. In there, what is left is removed, so that the next test does not fail, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest
from firewall import tables
from selection import is_pure
from warm_start import WarmStart

INIT: Final = "tini"
ON_HOST: Final = "CRCKPT_TESTS_ON_HOST"
"""In the environment: the tests may use the machine's own namespaces."""
ENDS_WITHIN_S: Final = 20.0
"""What ends by itself after its tree, or with its last reader, must have ended by then."""
PLACES: Final = tuple(map(Path, ("/run", "/dev/shm", "/dev/mqueue")))
KEPT: Final = frozenset(map(Path, ("/run/criu.kdat", "/run/crckpt/tracked", "/run/xtables.lock")))
"""Caches and locks of programs."""
DEAD: Final = re.compile(r"/run/crckpt/(keepers|filling|restored)/([0-9]+)-[0-9]+(\.ended)?")
"""What the next crckpt that looks there removes if its process has ended."""
IPC: Final = {"msg": "--queue-id", "sem": "--semaphore-id", "shm": "--shmem-id"}


@dataclass(frozen=True)
class Found:
    """What there is at one moment."""

    processes: frozenset[int]
    mounts: Mapping[int, str]
    """By their ids: a mount that was there before may have another path now."""
    files: frozenset[Path]
    ipc: frozenset[tuple[str, str]]
    tables: frozenset[str]


def is_isolated() -> bool:
    """Return whether nobody else uses our namespaces."""
    return Path("/proc/1/comm").read_text().strip() == INIT


def find() -> Found:
    """Look around."""
    return Found(frozenset(_processes()), dict(_mounts()), frozenset(_files()), frozenset(_ipc()), tables())


@pytest.fixture(autouse=True, scope="session")
def no_store_by_default() -> Iterator[None]:
    """A test that forgets to choose a store fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRCKPT_STORE", "/proc/this test has chosen no store")
        yield


@pytest.fixture(autouse=True, scope="module")
def modules_leave_nothing(request: pytest.FixtureRequest, no_store_by_default: None) -> Iterator[None]:
    """What a module's own fixtures have made is gone after its last test."""
    yield from _leaving_nothing(request)


@pytest.fixture(autouse=True)
def tests_leave_nothing(request: pytest.FixtureRequest, modules_leave_nothing: None) -> Iterator[None]:
    """What a test has made is gone after it."""
    yield from _leaving_nothing(request)


def _leaving_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    if is_pure(request.path) or ON_HOST in os.environ:
        yield
        return
    if not is_isolated():
        pytest.fail(f"this test needs namespaces of its own: sudo scripts/test {request.path}")
    before = find()
    yield
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (left := _left(before, now := find())) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        _remove(before, now)
        pytest.fail(f"it left behind: {left}")


def _left(before: Found, now: Found) -> str:
    """Name what is there now, and was not before; empty if nothing is."""
    processes = [f"process {pid} ({_command(pid)})" for pid in sorted(now.processes - before.processes)]
    return ", ".join(
        (
            *processes,
            *(f"mount {now.mounts[number]}" for number in sorted(now.mounts.keys() - before.mounts.keys())),
            *(f"file {path}" for path in sorted(now.files - before.files)),
            *(f"SysV {kind} {number}" for kind, number in sorted(now.ipc - before.ipc)),
            *(f"firewall table {table}" for table in sorted(now.tables - before.tables)),
        )
    )


def _remove(before: Found, now: Found) -> None:
    for pid in now.processes - before.processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for mount in reversed([mount for number, mount in now.mounts.items() if number not in before.mounts]):
        subprocess.run(["umount", "--lazy", mount.split()[0]], check=False)
    for path in now.files - before.files:
        path.unlink(missing_ok=True)
    for kind, number in now.ipc - before.ipc:
        subprocess.run(["ipcrm", IPC[kind], number], check=False)
    for table in now.tables - before.tables:
        subprocess.run(["nft", "delete", "table", *table.split()], check=False)


def _processes() -> Iterator[int]:
    """Processes that are neither ours nor pytest's; those that have ended do not count."""
    ours = {1, os.getpid(), *WarmStart.pids()}
    yield from (pid for pid in psutil.pids() if pid not in ours and _is_alive(pid))


def _is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _command(pid: int) -> str:
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return "ended meanwhile"


def _mounts() -> Iterator[tuple[int, str]]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        yield int(words[0]), f"{words[4]} ({words[words.index('-') + 1]})"


def _files() -> Iterator[Path]:
    for place in PLACES:
        for directory, _, names in os.walk(place):
            for name in names:
                path = Path(directory, name)
                dead = DEAD.fullmatch(str(path))
                if path not in KEPT and not (dead and not _is_alive(int(dead[2]))):
                    yield path


def _ipc() -> Iterator[tuple[str, str]]:
    for kind in IPC:
        for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:]:
            yield kind, line.split()[1]
