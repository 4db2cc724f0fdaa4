"""Memory that crckpt itself fills: every byte is as it was, no page is added, and all pages are filled or none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Crckpt
from stopped_trees import JOB, foreground, program, staging, stopped
from trees import Tree, runs, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED = 23
WITHIN_S = 60
RSEQ_BYTES = 32
"""What the kernel writes for each thread whenever it runs somewhere else (rseq(2))."""
_KERNELS = (["[vvar]"], ["[vvar_vclock]"], ["[vsyscall]"])


@pytest.fixture
def no_pages_added() -> Iterator[None]:
    """The kernel makes no huge page of a few small ones by itself, which would look as if crckpt had."""
    most = Path("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none")
    before = most.read_text() if most.exists() else ""
    if before:
        most.write_text("0")
    yield
    if before:
        most.write_text(before)


@pytest.mark.usefixtures("no_pages_added")
def test_restored_processes_have_the_same_content_and_amount_of_memory(crckpt: Crckpt) -> None:
    """The content and the amount of memory of two waiting processes are compared."""
    with started(program("resident", "--own", "4")) as tree:
        before = tree.counters()
        _stand_still(tree)
        contents, sizes = _contents(tree), _sizes(tree)
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        restored = _contents(tree)
        assert restored.keys() == contents.keys()
        different = {place: _different(contents[place], restored[place]) for place in contents}
        assert {place for place, count in different.items() if count > RSEQ_BYTES} == set()
        assert sum(count > 0 for count in different.values()) <= 2 * len(tree.pids())
        for what, size in _sizes(tree).items():
            assert size <= sizes[what] * 1.02 + 200, what
        for pid in tree.pids():
            os.kill(pid, signal.SIGCONT)
        tree.wait_growth(before)
        tree.wait_verified()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_tree_does_not_run_if_crckpt_is_killed_while_its_memory_is_filled(
    crckpt: Crckpt, number: signal.Signals, status: int
) -> None:
    """crckpt is killed when a part of the memory is filled: the tree is ended, and can be restored again."""
    with stopped(crckpt, program("resident", "--own", "128")) as tree:
        before = tree.counters()
        with foreground(crckpt) as front:
            wait_for(lambda: _resident_mib(tree.pid) > 30, WITHIN_S, "memory to be filled")
            front.send_signal(signal.SIGSTOP)
            wait_for(lambda: _state(front.pid) == "T", WITHIN_S, "crckpt to stand still")
            filled = _resident_mib(tree.pid)
            front.send_signal(number)
            front.send_signal(signal.SIGCONT)
            front.wait(WITHIN_S)
        assert front.returncode == status
        wait_for(lambda: not runs(tree.pid), WITHIN_S, "CRIU to undo what it has built")
        assert tree.counters() == before
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert filled < _resident_mib(tree.pid) * 3 / 4
        tree.wait_verified()
        crckpt.run("gc")
        assert staging(crckpt) == ()


@pytest.mark.parametrize("killed", ["", "child-0", "child-1"])
def test_task_killed_during_memory_fill_is_detected(crckpt: Crckpt, killed: str) -> None:
    """The killed task may already have all of its memory, like the first child: CRIU would wait for it forever."""
    with stopped(crckpt, program("resident", "--children", "1", "128")) as tree:
        before = tree.counters()
        filled, ended = (tree.parts()[part].pid for part in ("child-1", killed))
        with foreground(crckpt) as front:
            wait_for(lambda: _resident_mib(filled) > 80, WITHIN_S, "memory to be filled")
            os.kill(ended, signal.SIGKILL)
            _, error = front.communicate(timeout=WITHIN_S)
        assert (front.returncode, "nothing is left behind" in error) == (FAILED, True), error
        assert "ended while crckpt filled its memory" in error or f"{ended} cannot be filled: it has ended" in error
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        tree.wait_verified()


def _stand_still(tree: Tree) -> None:
    pids = tree.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: {_state(pid) for pid in pids} == {"T"}, WITHIN_S, "the tree to stand still")


def _contents(tree: Tree) -> dict[tuple[int, int], bytes]:
    """The content of private memory, by PID and address.

    Adjacent mappings are one, because the kernel may merge them.
    """
    found: dict[tuple[int, int], bytearray] = {}
    for pid in tree.pids():
        area = bytearray()
        reached = 0
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                span, permissions, _, _, _, *name = line.split(maxsplit=5)
                if permissions[0] != "r" or permissions[3] != "p" or name in _KERNELS:
                    continue
                start, end = (int(part, 16) for part in span.split("-"))
                if start != reached:
                    area = found[pid, start] = bytearray()
                memory.seek(start)
                area += memory.read(end - start)
                reached = end
    return {place: bytes(area) for place, area in found.items()}


def _different(one: bytes, other: bytes) -> int:
    return 0 if one == other else sum(a != b for a, b in zip(one, other, strict=True))


def _sizes(tree: Tree) -> dict[str, int]:
    """The memory of each process and of all together, in KiB."""
    sizes = {}
    for pid in tree.pids():
        rollup = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        sizes[f"Rss of {pid}"] = int(rollup["Rss"].split()[0])
        sizes["Pss"] = sizes.get("Pss", 0) + int(rollup["Pss_Anon"].split()[0])
    return sizes


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) / 256
    except (FileNotFoundError, ProcessLookupError):
        return 0
