"""Forecast how long a dump keeps a tree frozen and what it costs, from its size and from trials on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from crckpt.criu.dump_speed import running_trial_tree
from crckpt.errors import CrckptError, HostCannot
from crckpt.host import machine, proc
from crckpt.host.disk import space
from crckpt.host.observe import memory as resident
from crckpt.host.observe.tree import Observed
from crckpt.host.proc.maps import count_maps
from crckpt.model import PAGE_SIZE, DumpOptions, JobName, Statistics
from crckpt.ops.context import Context
from crckpt.ops.dump.result import RoundResult
from crckpt.ops.failures import to_crckpt_error
from crckpt.preflight.dump.files import find_deleted_files
from crckpt.preflight.dump.space import Growth, predict_growth
from crckpt.store import STAGING, NewCheckpoint, Repository, ingest, staged
from crckpt.tracking.choose_tracker import count_written

if TYPE_CHECKING:
    from crckpt.store.write.packing import StorageTrial, TrialResult

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


class CommitSpeed(Struct, frozen=True):
    """The time and the stored bytes of a commit: fixed, per small file, and per byte of memory.

    CRIU writes so many small `files` for any tree, and per process with their bytes.
    """

    files: float
    process_files: float
    process_bytes: float
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


def predict_cost(tree: Load, dump: DumpSpeed, commit: CommitSpeed, sampled: int) -> Prediction:
    """Predict the cost of a dump at these speeds. `sampled`: how many bytes of the tree were stored on trial."""
    frozen_ms = dump.freeze_ms(tree)
    # CRIU writes an image for each thread, and some for each process.
    files = commit.files + commit.process_files * tree.processes + tree.threads
    raw_bytes = tree.memory + commit.process_bytes * tree.processes
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
    # A set: a file that is open many times is copied once (criu/files-reg.c:1036).
    deleted = find_deleted_files(observed)
    unnamed = {(path, size) for path, size, links in deleted if not links and path not in mapped}
    return Load(
        memory=observed.memory + sum(size for _, size in unnamed),
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


# How often each is measured.
_TIMES: Final = 2

# An image of a process or thread has its number in the name.
_OF_A_TASK: Final = re.compile(r".*-[1-9]\d*\.img")

# Bytes of the tree's memory that are stored on trial: some 50 ms.
_SAMPLE: Final = 12 << 20

# For the decision whether a dump fits: repeated pages show only in a larger sample.
_LARGE_SAMPLE: Final = 32 << 20

# Of the wanted sample: a smaller one is not representative.
_LEAST: Final = 1 / 4

# Of the free space: the sample is written twice, and other programs need space, too.
_OF_FREE: Final = 1 / 4

_ZEROES: Final = bytes(PAGE_SIZE)


class DumpPrediction(Struct, frozen=True):
    """A prediction and what it assumes, or why there is none."""

    prediction: Prediction | None = None
    assumes: str = ""
    why_not: str = ""


def predict(observed: Observed, job: JobName, criu: Path, context: Context) -> DumpPrediction:
    """Predict what a dump would cost."""
    try:
        with _opened_trial_place(job, context) as place:
            tried = try_speed(criu, place.staging)
            sample = _read_sample(observed)
            commit, sampled = _try_commit(place, tried, sample), sum(map(len, sample))
            found = predict_cost(load_of_tree(observed), tried.speed, commit, sampled)
            limit, assumes = space.unwritten_limit(), place.assumes
            if found.raw_bytes > limit and not space.is_in_memory(place.staging):
                assumes += f"; this assumes a fast disk: after about {limit} bytes, writers must wait for it"
            return DumpPrediction(found, assumes)
    # A failure is returned as the reason: the dump may work all the same.
    except (CrckptError, OSError) as error:
        return DumpPrediction(why_not=to_crckpt_error(error, HostCannot, "a trial").message)


def try_growth(observed: Observed, job: JobName, context: Context, images: int) -> Growth | None:
    """Predict how much a checkpoint with `images` bytes of images adds to the store. None if that cannot be tried."""
    free = space.free_disk(space.nearest_existing(context.store))
    try:
        with _opened_trial_place(job, context) as place:
            sample = _read_sample(observed, min(_LARGE_SAMPLE, int(free * _OF_FREE)))
            alone, most = place.store(sample)
    # The dump may work all the same.
    except (CrckptError, OSError):
        return None
    stored = max(most.stored - alone.stored, 0)
    pages = [run[at : at + PAGE_SIZE] for run in sample for at in range(0, len(run), PAGE_SIZE)]
    written = [page for page in pages if page != _ZEROES]
    repeated = len(written) - len(set(written))
    return predict_growth(images, observed.memory, sum(map(len, sample)), repeated, stored)


class _TrialPlace(Struct, frozen=True):
    """Directories on the disks that a dump would use, a store of our own, and what stores a sample on trial.

    `is_next`: the dump would follow another checkpoint of its job.
    """

    work: Path
    staging: Path
    own: Repository
    on_trial: StorageTrial
    is_next: bool
    assumes: str

    def store(self, memory: list[bytes]) -> list[TrialResult]:
        """Store one new page alone, and with `memory`: the difference is without the fixed cost of a pack."""
        page, path, results = os.urandom(PAGE_SIZE), self.work / "memory", []
        for content in ([page], [page, *memory]):
            path.touch(mode=0o600)
            path.write_bytes(b"".join(content))
            try:
                results.append(self.on_trial.store(path))
            finally:
                path.unlink()
        return results


@contextmanager
def _opened_trial_place(job: JobName, context: Context) -> Iterator[_TrialPlace]:
    """Make the directories, and remove them after the block. Raises StoreUnusable, StoreLocked, OSError."""
    # Rarely needed and slow to import.
    from crckpt.store.write.packing import StorageTrial

    above = space.nearest_existing(context.store)
    store = context.repository() if above == context.store and any(above.iterdir()) else None
    with ExitStack() as stack:
        # The lock is held for a moment only: what `StorageTrial` needs of the store stays open even if it is removed.
        with store.shared() if store else nullcontext():
            work = stack.enter_context(staged(store.backend.scratch if store else above))
            # Use our own store on the same disk: the trial must leave nothing in the user's.
            own = Repository.open(work / "own", create=True)
            series = store.checkpoints(job) if store else ()
            on_trial = StorageTrial(store or own, series[-1] if series else None, work, context.compress)
        staging = work
        if context.staging is not None:
            staging = stack.enter_context(staged(context.staging))
            (work / STAGING).symlink_to(staging)
        which = "next" if series else "first"
        assumes = f"as the {which} checkpoint of {job} in {context.store}{'' if store else ' (a new store)'}"
        yield _TrialPlace(work, staging, own, on_trial, bool(series), assumes)


def _read_sample(observed: Observed, most: int = _SAMPLE) -> list[bytes]:
    """Read some of the tree's memory, in runs of whole pages. Raises HostCannot if too little can be read."""
    wanted = min(most, observed.memory)
    sample = list(resident.sample(observed.tree.pids, observed.memory, wanted))
    if sum(map(len, sample)) < wanted * _LEAST:
        raise HostCannot("crckpt can read too little of the tree's memory: it is swapped out or sparse")
    return sample


def _try_commit(place: _TrialPlace, tried: SpeedTrial, sample: list[bytes]) -> CommitSpeed:
    images, load = tried.images, tried.load
    sizes = {path.name: path.stat().st_size for path in images[0].iterdir() if not path.name.startswith("pages-")}
    of_tasks = [name for name in sizes if _OF_A_TASK.fullmatch(name)]
    # These rounds measure what small files cost. What memory costs is measured with the sample, which is the tree's
    # own.
    for directory in images:
        for path in (*directory.glob("pages-*"), *directory.glob("pagemap-*")):
            path.unlink()
    rounds = [_store(place.own, directory, "trial") for directory in images]
    bare = place.work / "bare"
    bare.mkdir(mode=0o700)
    nothing = _store(place.own, bare, "nothing")
    # In the second round the store already has most files, as after another checkpoint of the job.
    usual = rounds[-1 if place.is_next else 0]
    files, sampled = len(list(images[0].iterdir())), sum(map(len, sample))
    little, most = zip(*(place.store(sample) for _ in range(_TIMES)), strict=True)
    # Of pages that are known or zero little is written: then the disk's variation is more than their cost.
    spent = max(
        min(found.ms for found in most) - min(found.ms for found in little),
        min(found.packing_ms for found in most) - min(found.packing_ms for found in little),
    )
    return CommitSpeed(
        files=len(sizes) - len(of_tasks),
        process_files=(len(of_tasks) - load.threads) / load.processes,
        process_bytes=sum(size for name, size in sizes.items() if name.endswith(f"-{tried.root}.img")),
        fixed_ms=nothing.commit_ms + place.on_trial.known_ms,
        fixed_stored=nothing.stored_bytes,
        file_ms=max(min(found.commit_ms for found in rounds) - nothing.commit_ms, 0.0) / files,
        file_stored=max(usual.stored_bytes - nothing.stored_bytes, 0) / files,
        byte_ms=max(spent, 0.0) / sampled,
        byte_stored=max(most[0].stored - little[0].stored, 0) / sampled,
    )


def _store(repository: Repository, images: Path, job: str) -> Statistics:
    host = machine.describe_host("", "")
    new = NewCheckpoint(JobName(job), datetime.now(UTC), host, DumpOptions(), (), 0.0, 0.0, b"{}")
    return ingest(repository, images, new).statistics
