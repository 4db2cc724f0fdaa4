"""Predict what a dump of a tree would cost, from its size and from trials on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding
from crckpt.errors import CrckptError, HostCannot
from crckpt.host import machine
from crckpt.host.disk import space
from crckpt.host.observe import memory as resident
from crckpt.host.observe.tree import Observed
from crckpt.model import PAGE_SIZE, DumpOptions, JobName, Statistics
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import Examination, read_free_space
from crckpt.ops.dump.forecast import SpeedTrial, load_of_tree, try_speed
from crckpt.ops.failures import to_crckpt_error
from crckpt.preflight.dump.cost import (
    CommitSpeed,
    ImageFiles,
    Prediction,
    predict_cost,
)
from crckpt.preflight.dump.space import find_shortages
from crckpt.store import STAGING, NewCheckpoint, Repository, ingest, staged
from crckpt.store.write.storage_estimate import StorageTrial

# Bytes of the tree's memory that are stored on trial: some 50 ms.
_SAMPLE: Final = 12 << 20

# Of the wanted sample: a smaller one is not representative.
_LEAST: Final = 1 / 4

# How often each is measured.
_TIMES: Final = 2

# An image of a process or thread has its number in the name.
_OF_A_TASK: Final = re.compile(r".*-[1-9]\d*\.img")


class DumpPrediction(Struct, frozen=True):
    """A prediction and what it assumes, or why there is none."""

    prediction: Prediction | None = None
    assumes: str = ""
    why_not: str = ""


def predict(examination: Examination, context: Context) -> DumpPrediction:
    """Predict what a dump would cost."""
    try:
        with _opened_place(examination.job, context) as place:
            found = _prediction(examination, context, place)
            return DumpPrediction(found, f"{place.assumes}{_assumption_on_disk(found.raw_bytes, place.staging)}")
    # A failure is returned as the reason: the dump may work all the same.
    except (CrckptError, OSError) as error:
        return DumpPrediction(why_not=to_crckpt_error(error, HostCannot, "a trial").message)


def find_predicted_shortages(cost: Prediction, context: Context) -> tuple[Finding, ...]:
    """Find what the predicted images and the predicted growth of the store do not fit in."""
    return tuple(find_shortages(cost.raw_bytes, read_free_space(context), cost.stored_bytes))


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


@contextmanager
def _opened_place(job: JobName, context: Context) -> Iterator[_TrialPlace]:
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


def _assumption_on_disk(size: int, staging: Path) -> str:
    """Name what a prediction assumes of the disk for so many bytes of images."""
    limit = space.unwritten_limit()
    if size <= limit or space.is_in_memory(staging):
        return ""
    return f"; this assumes a fast disk: after about {limit} bytes, writers must wait for it"


def _prediction(examination: Examination, context: Context, place: _TrialPlace) -> Prediction:
    observed = examination.observed
    tried = try_speed(examination.criu.path, place.staging)
    images = _image_files(tried)
    sample = _sample(observed)
    commit = _commit_speed(place, tried.images, sample)
    return predict_cost(load_of_tree(observed), tried.speed, images, commit, _size(sample))


def _sample(observed: Observed) -> list[bytes]:
    wanted = min(_SAMPLE, observed.memory)
    sample = list(resident.sample(observed.tree.pids, observed.memory, wanted))
    if _size(sample) < wanted * _LEAST:
        raise HostCannot("crckpt can read too little of the tree's memory: it is swapped out or sparse")
    return sample


def _size(sample: list[bytes]) -> int:
    return sum(map(len, sample))


def _image_files(tried: SpeedTrial) -> ImageFiles:
    images, load = tried.images[0], tried.load
    sizes = {path.name: path.stat().st_size for path in images.iterdir() if not path.name.startswith("pages-")}
    of_tasks = [name for name in sizes if _OF_A_TASK.fullmatch(name)]
    return ImageFiles(
        files=len(sizes) - len(of_tasks),
        process_files=(len(of_tasks) - load.threads) / load.processes,
        process_bytes=sum(size for name, size in sizes.items() if name.endswith(f"-{tried.root}.img")),
    )


def _commit_speed(place: _TrialPlace, images: tuple[Path, ...], sample: list[bytes]) -> CommitSpeed:
    # These rounds measure what small files cost. What memory costs is measured with the sample, which is the tree's
    # own.
    for directory in images:
        for path in (*directory.glob("pages-*"), *directory.glob("pagemap-*")):
            path.unlink()
    rounds = [_store(place.own, directory, "trial") for directory in images]
    bare = _make_directory(place.work / "bare")
    nothing = _store(place.own, bare, "nothing")
    # In the second round the store already has most files, as after another checkpoint of the job.
    usual = rounds[-1 if place.is_next else 0]
    files = len(list(images[0].iterdir()))
    # A new page makes a new pack each time. The difference of the two is without the fixed cost of a pack and its sync.
    page = os.urandom(PAGE_SIZE)
    page_alone, memory = place.work / "begun", place.work / "memory"
    for path, content in ((page_alone, [page]), (memory, [page, *sample])):
        path.touch(mode=0o600)
        path.write_bytes(b"".join(content))
    store = place.on_trial.store
    little, most = zip(*((store(page_alone), store(memory)) for _ in range(_TIMES)), strict=True)
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
        byte_ms=max(spent, 0.0) / _size(sample),
        byte_stored=max(most[0].stored - little[0].stored, 0) / _size(sample),
    )


def _make_directory(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def _store(repository: Repository, images: Path, job: str) -> Statistics:
    host = machine.describe_host("", "")
    new = NewCheckpoint(JobName(job), datetime.now(UTC), host, DumpOptions(), (), 0.0, 0.0, b"{}")
    return ingest(repository, images, new).statistics
