"""Moments of a dump as they are seen from outside, so that a test can strike there; and what must hold afterwards."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil
from command import Crckpt, network_locks
from trees import Tree, wait_for

ENDS_WITHIN_S: Final = 20.0

Moment = Callable[[Path, Tree], bool]
"""Whether it has come, for a store and the tree that is being dumped."""


def _has(pattern: str) -> Moment:
    return lambda store, _: any(store.glob(pattern))


MOMENTS: Final[Mapping[str, Moment]] = {
    "transaction": _has("tmp/*/images"),
    "log": _has("tmp/*/dump.log"),
    "frozen": lambda _, tree: traced(tree),
    "images": _has("tmp/*/images/core-*.img"),
    "pages": _has("tmp/*/images/pages-*.img"),
    "inventory": _has("tmp/*/images/inventory.img"),
    "packing": _has("tmp/*/pack"),
    "manifest": _has("tmp/*/checkpoint"),
}
"""In the order in which they come. `inventory` is CRIU's last image; with --stop, the tree is held from then on."""


def reached(moment: Moment, store: Path, tree: Tree, has_ended: Callable[[], bool]) -> bool:
    """Look without pause until the moment has come (True) or crckpt `has_ended` (False)."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not has_ended():
        assert time.monotonic() < deadline, "neither the moment nor the end comes"
        try:
            if moment(store, tree):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


def traced(tree: Tree) -> bool:
    """Whether somebody, which must be CRIU, holds the root."""
    return "\nTracerPid:\t0\n" not in Path(f"/proc/{tree.pid}/status").read_text()


def users_of(store: Path) -> tuple[int, ...]:
    """Processes whose command line names the store: CRIU and its script, whoever started them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(store) in word for word in process.info["cmdline"] or ()):
            found.append(process.pid)
    return tuple(pid for pid in found if pid != os.getpid())


def wait_for_criu(store: Path) -> None:
    """Wait until no CRIU works for this store any more."""
    wait_for(lambda: not users_of(store), ENDS_WITHIN_S, "CRIU to end")


def assert_runs_on(tree: Tree, locks: frozenset[str]) -> None:
    """Nothing of the tree is stopped or traced, it counts on (its connection does), no more than `locks` are there."""
    states = {pid: psutil.Process(pid).status() for pid in tree.pids()}
    stopped = {pid: state for pid, state in states.items() if state in (psutil.STATUS_STOPPED, "tracing-stop")}
    assert states, "the tree has ended"
    assert not stopped
    assert not traced(tree)
    tree.wait_growth(tree.counters(), by=2)
    assert network_locks() <= locks


def checkpoints(crckpt: Crckpt) -> tuple[str, ...]:
    """Ids of the store's checkpoints, oldest first."""
    return tuple(entry["id"] for entry in crckpt.run("list", "--json").document["result"]["checkpoints"])


def manifests(store: Path) -> int:
    """How many checkpoints there are, without asking crckpt."""
    return len(list(store.glob("checkpoints/*/manifest.json")))
