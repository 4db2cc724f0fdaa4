"""Read what a tree uses, and predict what a dump of it would cost: from its size, and from trials on this host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import CrckptError, HostCannot
from crckpt.host import machine, proc
from crckpt.host.disk import space
from crckpt.host.usage import ProcessUsage, read_process_usage
from crckpt.model import DumpOptions, JobName, Statistics
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.forecast import SpeedTrial, load_of_tree, try_speed
from crckpt.ops.dump.growth import TrialPlace, opened_trial_place, read_sample
from crckpt.ops.failures import to_crckpt_error
from crckpt.preflight.dump.cost import CommitSpeed, ImageFiles, Prediction, predict_cost
from crckpt.store import NewCheckpoint, Repository, ingest

# How often each is measured.
_TIMES: Final = 2

# An image of a process or thread has its number in the name.
_OF_A_TASK: Final = re.compile(r".*-[1-9]\d*\.img")


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


def predict(target: DumpTarget) -> DumpPrediction:
    """Predict what a dump would cost."""
    try:
        with opened_trial_place(target.job, target.context) as place:
            tried = try_speed(target.criu.path, place.staging)
            images = _image_files(tried)
            sample = read_sample(target.observed)
            commit = _commit_speed(place, tried.images, sample)
            found = predict_cost(load_of_tree(target.observed), tried.speed, images, commit, _size(sample))
            return DumpPrediction(found, f"{place.assumes}{_assumption_on_disk(found.raw_bytes, place.staging)}")
    # A failure is returned as the reason: the dump may work all the same.
    except (CrckptError, OSError) as error:
        return DumpPrediction(why_not=to_crckpt_error(error, HostCannot, "a trial").message)


def _assumption_on_disk(size: int, staging: Path) -> str:
    """Name what a prediction assumes of the disk for so many bytes of images."""
    limit = space.unwritten_limit()
    if size <= limit or space.is_in_memory(staging):
        return ""
    return f"; this assumes a fast disk: after about {limit} bytes, writers must wait for it"


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


def _commit_speed(place: TrialPlace, images: tuple[Path, ...], sample: list[bytes]) -> CommitSpeed:
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
