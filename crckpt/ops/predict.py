"""What a dump of a tree would cost, from its size and from trials on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct

from crckpt.criu.speed import PROCESSES, THREADS, Dumped, subject
from crckpt.errors import CrckptError, HostCannot
from crckpt.host import machine, resident, room
from crckpt.host.observe import Observed
from crckpt.host.proc import descriptors, memory, read_process
from crckpt.model import PAGE_SIZE, JobName, Options, Statistics
from crckpt.ops.context import Context
from crckpt.ops.dump import Examined
from crckpt.preflight.cost import (
    CommitSpeed,
    DumpSpeed,
    ImageFiles,
    Load,
    Prediction,
    Task,
    each_of,
    predicted,
)
from crckpt.store import STAGING, Checkpoint, NewCheckpoint, Rehearsal, Repository, ingest, laid_out, load, staged

_SAMPLE: Final = 32 << 20
"""Bytes of the tree's memory that are stored on trial: some 100 ms."""

_LEAST: Final = 1 / 4
"""Of the sample that is wanted: less tells nothing."""

_ROUNDS: Final = ("first", "second", "third")
"""What is measured is measured so often, and the middle counts; the last dump shows what changes in an idle tree."""

_OF_A_TASK: Final = re.compile(r".*-[1-9]\d*\.img")


class Foreseen(Struct, frozen=True):
    """A prediction and what it assumes, or why there is none."""

    prediction: Prediction | None = None
    assumes: str = ""
    why_not: str = ""


def predict(examined: Examined, context: Context) -> Foreseen:
    """Say what a dump would cost. What goes wrong is said in place of it: a dump may work all the same."""
    try:
        with _place(examined.job, context) as place:
            return Foreseen(_prediction(examined, context, place), place.assumes)
    except CrckptError as error:
        return Foreseen(why_not=error.message)
    except OSError as error:
        return Foreseen(why_not=str(error))


class _Place(Struct, frozen=True):
    """Directories on the disks that a dump would use, the store or one of our own, and the checkpoint to build on."""

    work: Path
    staging: Path
    own: Repository
    store: Repository
    parent: Checkpoint | None
    assumes: str


@contextmanager
def _place(job: JobName, context: Context) -> Iterator[_Place]:
    """All that is made in them is gone after the block. Raises StoreUnusable, StoreLocked, OSError."""
    above = room.existing(context.store)
    store = context.repository() if above == context.store and any(above.iterdir()) else None
    with ExitStack() as stack:
        work = stack.enter_context(store.transaction()).path if store else stack.enter_context(staged(above))
        staging = work
        if context.staging is not None:
            staging = stack.enter_context(staged(context.staging))
            (work / STAGING).symlink_to(staging)
        series = store.checkpoints(job) if store else ()
        if series:
            assumes = f"as the next checkpoint of {job} in {context.store}"
        else:
            assumes = f"as the first checkpoint of {job} in {context.store}" + (
                "" if store else ", which is to be made"
            )
        own = Repository.open(work / "own", create=True)
        yield _Place(work, staging, own, store or own, series[-1] if series else None, assumes)


def _prediction(examined: Examined, context: Context, place: _Place) -> Prediction:
    seen = examined.seen
    with subject(examined.criu.path, place.staging) as trial:
        loads = {kind: _load_of(pid) for kind, pid in trial.pids.items()}
        dumps = [trial.dump(name, load) for name in _ROUNDS]
    tasks = {kind: Task(loads[kind], median(_time_of(pid, dump) for dump in dumps)) for kind, pid in trial.pids.items()}
    images = _image_files(dumps[0].images, trial.pids["plain"])
    sample = _sample(seen)
    return predicted(
        _load_of_tree(seen),
        DumpSpeed(
            each=each_of(tasks),
            freeze_ms=median(dump.frozen_ms - sum(dump.tasks.values()) for dump in dumps),
            around_ms=median(dump.dump_ms - dump.frozen_ms for dump in dumps),
        ),
        images,
        _commit_speed(place, [dump.images for dump in dumps], sample, context.compress),
        _size(sample),
    )


def _sample(seen: Observed) -> list[resident.Run]:
    wanted = min(_SAMPLE, seen.memory)
    names = {process.pid: process.ns_pids[-1] for process in seen.tree.processes}
    sample = [run._replace(pid=names[run.pid]) for run in resident.sample(seen.tree.pids, seen.memory, wanted)]
    if _size(sample) < wanted * _LEAST:
        raise HostCannot("too little of the tree's memory can be looked at: it is swapped out, or sparse")
    return sample


def _size(sample: list[resident.Run]) -> int:
    return sum(len(run.content) for run in sample)


def _load_of_tree(seen: Observed) -> Load:
    live = [process for process in seen.tree.processes if process.state != "zombie"]
    return Load(
        memory=seen.memory,
        maps=sum(resident.maps(process.pid)[0] for process in live),
        descriptors=len(seen.descriptors),
        threads=sum(len(process.threads) for process in live),
        processes=len(live),
    )


def _load_of(pid: int) -> Load:
    process = read_process(pid)
    threads = len(process.threads) if process else 0
    return Load(memory(pid), resident.maps(pid)[0], len(descriptors(pid)), threads, 1)


def _time_of(pid: int, dump: Dumped) -> float:
    if pid not in dump.tasks:
        raise HostCannot("the log of a trial dump does not tell how long its processes took")
    return dump.tasks[pid]


def _image_files(images: Path, plain: int) -> ImageFiles:
    sizes = {path.name: path.stat().st_size for path in images.iterdir() if not path.name.startswith("pages-")}
    of_tasks = [name for name in sizes if _OF_A_TASK.fullmatch(name)]
    return ImageFiles(
        files=len(sizes) - len(of_tasks),
        process_files=(len(of_tasks) - THREADS) / PROCESSES,
        process_bytes=sum(size for name, size in sizes.items() if name.endswith(f"-{plain}.img")),
    )


def _commit_speed(place: _Place, images: list[Path], sample: list[resident.Run], compress: int | None) -> CommitSpeed:
    bare = _made(place.work / "bare")
    nothing = _stored(place.own, bare, "nothing")
    for directory in images:
        for path in (*directory.glob("pages-*"), *directory.glob("pagemap-*")):
            path.unlink()
    rounds = [_stored(place.own, directory, "trial") for directory in images]
    usual = rounds[-1 if place.parent else 0]
    files = len(list(images[0].iterdir()))
    rehearsal = Rehearsal(place.store, place.parent, place.work, compress)
    # A page that nobody knows makes a pack of it each time. To begin, to sync, and to open the file of each process is
    # no cost of the bytes: the difference is.
    page = resident.Run(0, 0, os.urandom(PAGE_SIZE))
    first = {run.pid: run._replace(content=run.content[:PAGE_SIZE]) for run in reversed(sample)}
    begun = laid_out([page, *first.values()], _made(place.work / "begun"))
    memory = laid_out([page, *sample], bare)
    little, most = zip(*((rehearsal.store(begun), rehearsal.store(memory)) for _ in _ROUNDS), strict=True)
    spent = median(found.ms for found in most) - median(found.ms for found in little)
    return CommitSpeed(
        fixed_ms=nothing.commit_ms + rehearsal.known_ms,
        fixed_stored=nothing.stored_bytes,
        file_ms=max(median(found.commit_ms for found in rounds) - nothing.commit_ms, 0.0) / files,
        file_stored=max(usual.stored_bytes - nothing.stored_bytes, 0) / files,
        byte_ms=max(spent, 0.0) / _size(sample),
        byte_stored=max(most[0].stored - little[0].stored, 0) / _size(sample),
    )


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def _stored(repository: Repository, images: Path, job: str) -> Statistics:
    host = machine.host("", "")
    new = NewCheckpoint(JobName(job), datetime.now(UTC), host, Options(), (), 0.0, 0.0, b"{}")
    return ingest(repository, images, new).statistics
