"""Moments of a dump as seen from outside, to interrupt it there; and the state that must hold afterwards."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from command import Crckpt, network_locks
from trees import Tree, runs, wait_for

ENDS_WITHIN_S: Final = 60.0

Moment = Callable[[Path, Tree, int], bool]
"""Whether it has come, for a store, the tree that is being dumped, and crckpt's PID."""


def _has(pattern: str) -> Moment:
    # What an earlier crckpt, killed by a test, has left there does not count.
    return lambda store, _, pid: any(store.glob(f"tmp/{pid}-*/{pattern}"))


MOMENTS: Final[Mapping[str, Moment]] = {
    "transaction": _has("images"),
    "log": _has("dump.log"),
    "frozen": lambda _store, tree, _pid: is_traced(tree),
    "images": _has("images/core-*.img"),
    "pages": _has("images/pages-*.img"),
    "inventory": _has("images/inventory.img"),
    "packing": _has("pack-*"),
    "manifest": _has("manifest.json"),
}
"""In the order in which they come. `inventory` is CRIU's last image; with --stop, the tree is held from then on."""


def wait_for_moment(moment: Moment, store: Path, tree: Tree, dump: subprocess.Popen[str]) -> bool:
    """Look without pause until the moment has come (True) or crckpt has ended (False)."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    while dump.poll() is None:
        assert time.monotonic() < deadline, "neither the moment nor the end comes"
        try:
            if moment(store, tree, dump.pid):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


def is_traced(tree: Tree) -> bool:
    """Return whether somebody, which must be CRIU, holds the root."""
    return "\nTracerPid:\t0\n" not in Path(f"/proc/{tree.pid}/status").read_text()


def find_below(pid: int, word: str) -> list[psutil.Process]:
    """Find the processes below this one that have the word in their command lines. Others may end while we look."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if any(word in part for part in process.cmdline()):
                found.append(process)
    return found


def kill_below(pid: int) -> None:
    """SIGKILL whatever still runs below this process."""
    # Stop all processes first: one that is started just before its parent is killed would not be found.
    stopped: set[psutil.Process] = set()
    while found := set(psutil.Process(pid).children(recursive=True)) - stopped:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
                wait_for(partial(_stands, process), ENDS_WITHIN_S, f"{process} to stop")
        stopped |= found
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _stands(process: psutil.Process) -> bool:
    return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


def orphans_of(dump: subprocess.Popen[str]) -> tuple[int, ...]:
    """SIGKILL crckpt; the processes that it had started by then, which go on without it (none if it has ended)."""
    dump.send_signal(signal.SIGSTOP)  # so that it starts no more while we look
    found = psutil.Process(dump.pid).children(recursive=True) if dump.returncode is None else []
    dump.kill()
    dump.communicate()
    return tuple(process.pid for process in found)


def wait_ended(pids: Iterable[int]) -> None:
    """Wait until none of these runs any more."""
    wait_for(lambda: not any(runs(pid) for pid in pids), ENDS_WITHIN_S, "CRIU to end")


def assert_runs_on(tree: Tree, locks: frozenset[str]) -> None:
    """Nothing of the tree is stopped or traced, it counts on (its connection does), no more than `locks` are there."""
    states = {pid: psutil.Process(pid).status() for pid in tree.pids()}
    stopped = {pid: state for pid, state in states.items() if state in (psutil.STATUS_STOPPED, "tracing-stop")}
    assert states, "the tree has ended"
    assert not stopped
    assert not is_traced(tree)
    tree.wait_growth(tree.counters(), by=2)
    assert network_locks() <= locks


def checkpoints(crckpt: Crckpt) -> tuple[str, ...]:
    """Ids of the store's checkpoints, oldest first."""
    return tuple(entry["id"] for entry in crckpt.run("list", "--json").document["result"]["checkpoints"])


def manifests(store: Path) -> int:
    """Count the checkpoints without asking crckpt."""
    return len(list(store.glob("checkpoints/*/manifest.json")))
