"""The parts that tests of incremental dumps share: dumping, asking the tracker, and holding a checkpoint against
memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command import Crckpt
from rounds import PAGE, PAGES, Target

from crckpt.criu.find import find
from crckpt.errors import HostCannot
from crckpt.host.syscalls import memory_trials
from crckpt.images.pagemap import read_pagemap
from crckpt.model import CheckpointId
from crckpt.store import Repository, read_file
from crckpt.tracking.refusals import find_criu_refusal
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.uffd_wp import UffdWp

MIB = 1 << 20


def find_refusal() -> str:
    """Find why this kernel tracks in no way, or nothing."""
    try:
        if memory_trials.tracks_by_soft_dirty():
            return find_criu_refusal(find(None, None).path, SoftDirty.name)
        if not memory_trials.tracks_by_write_protection():
            return "a written page is not told"
        return find_criu_refusal(find(None, None).path, UffdWp.name)
    except HostCannot as error:
        return error.message


NO_TRACKER = find_refusal()


def dump_incrementally(crckpt: Crckpt, target: Target, *words: str) -> dict[str, Any]:
    """The result of an incremental dump."""
    document = crckpt.run("dump", str(target.pid), "job", "--incremental", "--json", *words).document
    result: dict[str, Any] = document["result"]
    return result


def trackers(crckpt: Crckpt) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = crckpt.run("ps", "--json").document["result"]["trackers"]
    return listed


def keeper(crckpt: Crckpt, target: Target) -> dict[str, Any]:
    (found,) = [tracker for tracker in trackers(crckpt) if tracker["root"] == target.pid]
    return found


def assert_complete(crckpt: Crckpt, checkpoint: str, target: Target, pid: int | None = None) -> None:
    """Compare the area in the checkpoint with that in memory, which the process has not changed since the dump."""
    pid = pid or target.pid
    repository = Repository.open(crckpt.store)
    stored = repository.get(CheckpointId(checkpoint))
    found = read_pagemap(read_file(repository, stored, f"pagemap-{pid}.img"))
    pages = memoryview(read_file(repository, stored, found.pages_name))
    compared = 0
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for entry in found.entries:
            content, pages = pages[: entry.pages * PAGE], pages[entry.pages * PAGE :]
            low, high = max(entry.vaddr, target.area), min(entry.vaddr + len(content), target.area + PAGES * PAGE)
            if low < high:
                memory.seek(low)
                assert memory.read(high - low) == content[low - entry.vaddr : high - entry.vaddr]
                compared += high - low
    assert compared == PAGES * PAGE


def restore_and_ask(crckpt: Crckpt, target: Target, ref: str, number: int) -> str:
    """End it, bring it back, and ask for the checksum of what it has; it had been told `number` things."""
    target.end()
    crckpt.run("restore", ref, "--detach")
    target.number = number
    return target.look()


def filling(path: Path, filler: Path, full: Path) -> Path:
    """A CRIU that leaves no room on a disk behind it, if there is a file `full`."""
    fill = f"[ ! -e {full} ] || dd if=/dev/zero of={filler} bs=4k 2>/dev/null"
    path.write_text(f'#!/bin/sh\n{find(None, None).path} "$@"\nstatus=$?\n{fill}\nexit $status\n')
    path.chmod(0o755)
    return path


def wrapper(directory: Path, before: str) -> Path:
    """A CRIU before which something is done."""
    return executable(directory / "criu", f'{before}\nexec {find(None, None).path} "$@"')


def executable(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@contextmanager
def mounted(store: Path, size: int) -> Iterator[Crckpt]:
    """crckpt with a store on a file system of its own, of this size in bytes."""
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(store)], check=True)
    try:
        yield Crckpt(store)
    finally:
        subprocess.run(["umount", "--lazy", str(store)], check=True)
