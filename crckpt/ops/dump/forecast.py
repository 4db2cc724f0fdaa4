"""Forecast how long a dump keeps a tree frozen and what it costs, from trials on this host and the rounds before it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from msgspec import Struct

from crckpt.criu.dump_speed import running_trial_tree
from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.observe.tree import Observed
from crckpt.host.proc.maps import count_maps
from crckpt.model import PAGE_SIZE
from crckpt.ops.dump.result import RoundResult
from crckpt.preflight.dump.files import ghost_files
from crckpt.tracking.choose_tracker import count_written

# One dump each. The second shows what changes in an idle tree.
_ROUNDS: Final = ("first", "second")


class Load(NamedTuple):
    """The amounts that a dump's time grows with, in a process or a tree. `memory`: bytes that are in no file."""

    memory: float = 0
    maps: float = 0
    descriptors: float = 0
    threads: float = 0
    processes: float = 0


class DumpSpeed(Struct, frozen=True):
    """The speed of CRIU's dumps: milliseconds per byte of memory, and before and after the freeze (`around_ms`).

    `slowness`: the time for everything but memory, as a multiple of `usual_ms`.
    """

    byte_ms: float
    slowness: float
    around_ms: float

    def freeze_ms(self, load: Load, memory: float | None = None) -> float:
        """Return how long a dump freezes a tree. `memory`: how many bytes of it are copied; None for all."""
        return self.byte_ms * (load.memory if memory is None else memory) + self.slowness * usual_ms(load)


class ImageFiles(Struct, frozen=True):
    """The number of small files that CRIU writes: for any tree (`files`), and per process with their bytes."""

    files: float
    process_files: float
    process_bytes: float


class CommitSpeed(Struct, frozen=True):
    """The time and the stored bytes of a commit: fixed, per small file, and per byte of memory."""

    fixed_ms: float
    fixed_stored: float
    file_ms: float
    file_stored: float
    byte_ms: float
    byte_stored: float


class Prediction(Struct, frozen=True):
    """The expected cost of a dump, named as a checkpoint's statistics, from so many `sampled_bytes` of memory."""

    frozen_ms: float
    dump_ms: float
    commit_ms: float
    raw_bytes: int
    stored_bytes: int
    sampled_bytes: int


_ONCE_MS: Final = 5.0  # the same for every tree
# The times of CRIU 4.2.1 in a virtual machine with two cores of 2024. Only their ratios count: trials measure how fast
# this host is.
_EACH_MS: Final = Load(memory=0, maps=0.026, descriptors=0.055, threads=0.35, processes=2.5)


def usual_ms(load: Load) -> float:
    """Return how long the reference host freezes a tree, without the time for memory."""
    return _ONCE_MS + sum(cost * amount for cost, amount in zip(_EACH_MS, load, strict=True))


def dump_speed(load: Load, memory_ms: float, frozen_ms: float, dump_ms: float) -> DumpSpeed:
    """Compute the speed from a trial dump of `load`: the times of its memory, of the whole freeze, and of the dump."""
    return DumpSpeed(
        byte_ms=memory_ms / load.memory,
        slowness=max(frozen_ms - memory_ms, 0.0) / usual_ms(load),
        around_ms=max(dump_ms - frozen_ms, 0.0),
    )


def predict_cost(tree: Load, dump: DumpSpeed, images: ImageFiles, commit: CommitSpeed, sampled: int) -> Prediction:
    """Predict the cost of a dump at these speeds. `sampled`: how many bytes of the tree were stored on trial."""
    frozen_ms = dump.freeze_ms(tree)
    # CRIU writes an image for each thread, and some for each process.
    files = images.files + images.process_files * tree.processes + tree.threads
    raw_bytes = tree.memory + images.process_bytes * tree.processes
    return Prediction(
        frozen_ms=frozen_ms,
        dump_ms=frozen_ms + dump.around_ms,
        commit_ms=commit.fixed_ms + commit.file_ms * files + commit.byte_ms * tree.memory,
        raw_bytes=round(raw_bytes),
        stored_bytes=round(commit.fixed_stored + commit.file_stored * files + commit.byte_stored * tree.memory),
        sampled_bytes=sampled,
    )


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
