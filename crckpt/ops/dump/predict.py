"""What a dump of a tree would cost, from its size and from trials on this host."""

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
from crckpt.host import machine
from crckpt.host.disk import space
from crckpt.host.observe import memory as resident
from crckpt.host.observe.tree import Observed
from crckpt.model import PAGE_SIZE, DumpOptions, JobName, Statistics
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import Examined
from crckpt.ops.dump.forecast import Trial, load_of_tree, trial
from crckpt.ops.failures import as_ours
from crckpt.preflight.dump.cost import (
    CommitSpeed,
    ImageFiles,
    Prediction,
    predict_cost,
)
from crckpt.store import STAGING, NewCheckpoint, Repository, ingest, staged
from crckpt.store.write.on_trial import OnTrial

_SAMPLE: Final = 12 << 20
"""Bytes of the tree's memory that are stored on trial: some 50 ms."""

_LEAST: Final = 1 / 4
"""Of the sample that is wanted: less tells nothing."""

_TIMES: Final = 2
"""What is measured is measured so often."""

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
            found = _prediction(examined, context, place)
            return Foreseen(found, f"{place.assumes}{_beyond(found.raw_bytes, place.staging)}")
    except (CrckptError, OSError) as error:
        return Foreseen(why_not=as_ours(error, HostCannot, "a trial").message)


class _Place(Struct, frozen=True):
    """Directories on the disks that a dump would use, the store or one of our own, and what is stored on trial.

    `is_next`: it would build on another checkpoint.
    """

    work: Path
    staging: Path
    own: Repository
    on_trial: OnTrial
    is_next: bool
    assumes: str


@contextmanager
def _place(job: JobName, context: Context) -> Iterator[_Place]:
    """All that is made in them is gone after the block. Raises StoreUnusable, StoreLocked, OSError."""
    above = space.existing(context.store)
    store = context.repository() if above == context.store and any(above.iterdir()) else None
    with ExitStack() as stack:
        # Held shortly: what it finds of the store stays open, and may be removed from then on.
        with store.shared() if store else nullcontext():
            work = stack.enter_context(staged(store.backend.scratch if store else above))
            own = Repository.open(work / "own", create=True)
            series = store.checkpoints(job) if store else ()
            on_trial = OnTrial(store or own, series[-1] if series else None, work, context.compress)
        staging = work
        if context.staging is not None:
            staging = stack.enter_context(staged(context.staging))
            (work / STAGING).symlink_to(staging)
        which = "next" if series else "first"
        assumes = f"as the {which} checkpoint of {job} in {context.store}{'' if store else ', which is to be made'}"
        yield _Place(work, staging, own, on_trial, bool(series), assumes)


def _beyond(size: int, staging: Path) -> str:
    """What cannot be foreseen of so many bytes of images there."""
    limit = space.unwritten_limit()
    if size <= limit or space.is_in_memory(staging):
        return ""
    return f", and that the disk keeps up: from about {limit} bytes on, who writes has to wait for it"


def _prediction(examined: Examined, context: Context, place: _Place) -> Prediction:
    seen = examined.seen
    tried = trial(examined.criu.path, place.staging)
    images = _image_files(tried)
    sample = _sample(seen)
    commit = _commit_speed(place, tried.images, sample)
    return predict_cost(load_of_tree(seen), tried.speed, images, commit, _size(sample))


def _sample(seen: Observed) -> list[bytes]:
    wanted = min(_SAMPLE, seen.memory)
    sample = list(resident.sample(seen.tree.pids, seen.memory, wanted))
    if _size(sample) < wanted * _LEAST:
        raise HostCannot("too little of the tree's memory can be looked at: it is swapped out, or sparse")
    return sample


def _size(sample: list[bytes]) -> int:
    return sum(map(len, sample))


def _image_files(tried: Trial) -> ImageFiles:
    images, load = tried.images[0], tried.load
    sizes = {path.name: path.stat().st_size for path in images.iterdir() if not path.name.startswith("pages-")}
    of_tasks = [name for name in sizes if _OF_A_TASK.fullmatch(name)]
    return ImageFiles(
        files=len(sizes) - len(of_tasks),
        process_files=(len(of_tasks) - load.threads) / load.processes,
        process_bytes=sum(size for name, size in sizes.items() if name.endswith(f"-{tried.root}.img")),
    )


def _commit_speed(place: _Place, images: tuple[Path, ...], sample: list[bytes]) -> CommitSpeed:
    for directory in images:
        for path in (*directory.glob("pages-*"), *directory.glob("pagemap-*")):
            path.unlink()
    rounds = [_stored(place.own, directory, "trial") for directory in images]
    bare = _made(place.work / "bare")
    nothing = _stored(place.own, bare, "nothing")
    usual = rounds[-1 if place.is_next else 0]
    files = len(list(images[0].iterdir()))
    # A page that nobody knows makes a pack of it each time. To begin and to sync costs no byte: the difference counts.
    page = os.urandom(PAGE_SIZE)
    begun, memory = place.work / "begun", place.work / "memory"
    for path, content in ((begun, [page]), (memory, [page, *sample])):
        path.touch(mode=0o600)
        path.write_bytes(b"".join(content))
    store = place.on_trial.store
    little, most = zip(*((store(begun), store(memory)) for _ in range(_TIMES)), strict=True)
    # Of what is known or zero little comes to the disk: then its moods are more than what the bytes take.
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


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def _stored(repository: Repository, images: Path, job: str) -> Statistics:
    host = machine.host("", "")
    new = NewCheckpoint(JobName(job), datetime.now(UTC), host, DumpOptions(), (), 0.0, 0.0, b"{}")
    return ingest(repository, images, new).statistics
