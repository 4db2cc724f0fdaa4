"""Forecast how long a dump would keep a tree frozen, from trials on this host and from the rounds before it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Final

from msgspec import Struct

from crckpt.criu.dump_speed import running_trial_tree
from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.observe.tree import Observed
from crckpt.host.proc.maps import count_maps
from crckpt.model import PAGE_SIZE
from crckpt.ops.dump.result import RoundResult
from crckpt.preflight.dump.cost import DumpSpeed, Load, dump_speed
from crckpt.preflight.dump.files import ghost_files
from crckpt.tracking.choose_tracker import count_written

# One dump each. The second shows what changes in an idle tree.
_ROUNDS: Final = ("first", "second")


class SpeedTrial(Struct, frozen=True):
    """Dumps of a small tree: how quick they were, the tree's load and its root's PID, and where their images are."""

    speed: DumpSpeed
    load: Load
    root: int
    images: tuple[Path, ...]


def try_speed(criu: Path, staging: Path) -> SpeedTrial:
    """Dump a small tree of ours with this CRIU into the private directory `staging`. Raises HostCannot."""
    with running_trial_tree(criu, staging) as tried:
        pids = (tried.root, tried.child)
        load = Load(
            memory=proc.memory(*pids),
            maps=sum(map(count_maps, pids)),
            descriptors=sum(len(proc.descriptors(pid)) for pid in pids),
            threads=sum(len(process.threads) for pid in pids if (process := proc.read_process(pid))),
            processes=len(pids),
        )
        dumps = [tried.dump(name) for name in _ROUNDS]
    quick = dump_speed(
        load,
        memory_ms=fmean(dump.memory_ms for dump in dumps),
        frozen_ms=fmean(dump.frozen_ms for dump in dumps),
        dump_ms=fmean(dump.dump_ms for dump in dumps),
    )
    return SpeedTrial(quick, load, tried.root, tuple(dump.images for dump in dumps))


def load_of_tree(observed: Observed) -> Load:
    """The sizes with which the time of a dump grows."""
    live = [process for process in observed.tree.processes if process.state != "zombie"]
    # CRIU copies files without a name. Mapped ones in memory are counted as memory.
    mapped = {path for path, *_ in observed.deleted_maps if is_in_memory(path)}
    return Load(
        memory=observed.memory + sum(size for path, size in ghost_files(observed) if path not in mapped),
        maps=sum(count_maps(process.pid) for process in live),
        descriptors=len(observed.descriptors),
        threads=sum(len(process.threads) for process in live),
        processes=len(live),
    )


def freeze_after_ms(speed: DumpSpeed, load: Load, last: RoundResult, tracked: int, whole: int) -> float:
    """Estimate the freeze of a dump of this load after the `last` round; bytes are left as `bytes_left` returns."""
    # The round reset the bits at its begin, so what is written now took about as long as the round; the tree writes
    # some more until CRIU has started.
    growth = 1 + speed.around_ms / max(last.ms, speed.around_ms)
    # At most all of the tree's memory, which may have grown since it was measured.
    most = max(load.memory, tracked + last.fixed_bytes + whole)
    memory = min(tracked * growth + last.fixed_bytes + whole, most)
    # CRIU does again what it did in the freeze of the round, and writes the pages and what is not memory.
    return last.frozen_ms + speed.freeze_ms(load, memory)


def bytes_left(root: proc.Process, tracker: str) -> tuple[int, int]:
    """Bytes left to the freeze below `root`: of tracked memory, written since the last round; of stopped processes."""
    tracked = whole = 0
    now = proc.read_process(root.pid)
    # If the tree has ended, the dump reports that, not its forecast.
    if now is None or now.identity != root.identity:
        return tracked, whole
    for process in proc.read_tree(now).processes:
        with suppress(OSError):
            if process.state == "stopped":  # CRIU takes nothing of it in a round (criu/cr-dump.c:1493)
                whole += proc.memory(process.pid)
            else:
                tracked += count_written(tracker, process.pid) * PAGE_SIZE
    return tracked, whole


def is_in_memory(path: str) -> bool:
    """Return whether that file, which may have no name any more, is on a file system in memory."""
    return space.is_in_memory(space.nearest_existing(Path(path).parent))
