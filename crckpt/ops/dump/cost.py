"""Read what a tree uses, and predict what a dump costs and adds to the store: from its size, and from trials here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import CrckptError, HostCannot
from crckpt.host import machine, proc
from crckpt.host.disk import space
from crckpt.host.observe import memory as resident
from crckpt.host.observe.tree import Observed
from crckpt.host.usage import ProcessUsage, read_process_usage
from crckpt.model import PAGE_SIZE, DumpOptions, JobName, Statistics
from crckpt.ops.context import Context
from crckpt.ops.dump.forecast import (
    CommitSpeed,
    ImageFiles,
    Prediction,
    load_of_tree,
    predict_cost,
    try_speed,
)
from crckpt.ops.failures import to_crckpt_error
from crckpt.preflight.dump.space import Growth, predict_growth
from crckpt.store import STAGING, NewCheckpoint, Repository, ingest, staged
from crckpt.store.write.storage_estimate import StorageTrial, TrialResult

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


class UsingProcess(Struct, frozen=True):
    """A process of the tree, and what it uses."""

    pid: int
    comm: str
    usage: ProcessUsage


class DumpPrediction(Struct, frozen=True):
    """A prediction and what it assumes, or why there is none."""

    prediction: Prediction | None = None
    assumes: str = ""
    why_not: str = ""


def read_tree_usage(tree: proc.Tree) -> Iterator[UsingProcess]:
    """Read what each process of a tree uses, the root first. Processes that have ended are left out."""
    for process in tree.processes:
        usage = read_process_usage(process.pid)
        # Else it is of another process, which has got the PID.
        if usage is not None and process.identity.keeps_pid:
            yield UsingProcess(process.pid, process.comm, usage)


def predict(observed: Observed, job: JobName, criu: Path, context: Context) -> DumpPrediction:
    """Predict what a dump would cost."""
    try:
        with _opened_trial_place(job, context) as place:
            tried = try_speed(criu, place.staging)
            images, load = tried.images[0], tried.load
            sizes = {path.name: path.stat().st_size for path in images.iterdir() if not path.name.startswith("pages-")}
            of_tasks = [name for name in sizes if _OF_A_TASK.fullmatch(name)]
            files = ImageFiles(
                files=len(sizes) - len(of_tasks),
                process_files=(len(of_tasks) - load.threads) / load.processes,
                process_bytes=sum(size for name, size in sizes.items() if name.endswith(f"-{tried.root}.img")),
            )
            sample = _read_sample(observed)
            commit, sampled = _try_commit(place, tried.images, sample), sum(map(len, sample))
            found = predict_cost(load_of_tree(observed), tried.speed, files, commit, sampled)
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


def _try_commit(place: _TrialPlace, images: tuple[Path, ...], sample: list[bytes]) -> CommitSpeed:
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
