"""What a dump of a tree would cost, worked out from the tree's size and what trials on this host took. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct


class Load(NamedTuple):
    """What the time of a dump grows with, in one process or a tree. `memory` is bytes that are in no file."""

    memory: float = 0
    maps: float = 0
    descriptors: float = 0
    threads: float = 0
    processes: float = 0


class Task(NamedTuple):
    """How long CRIU took for a process of this load."""

    load: Load
    ms: float


class DumpSpeed(Struct, frozen=True):
    """Milliseconds of a dump: for each of a load, of the freeze beside that, and before and after the freeze."""

    each: Load
    freeze_ms: float
    around_ms: float


class ImageFiles(Struct, frozen=True):
    """How many files CRIU writes beside the memory: for any tree, and for each process, of so many bytes."""

    files: float
    process_files: float
    process_bytes: float


class CommitSpeed(Struct, frozen=True):
    """What storing took and gave: of nothing, of each small file, and of each byte of memory."""

    fixed_ms: float
    fixed_stored: float
    file_ms: float
    file_stored: float
    byte_ms: float
    byte_stored: float


class Prediction(Struct, frozen=True):
    """What a dump is expected to cost, named as the statistics of checkpoints.

    `sampled_bytes` is how much of the tree's memory was looked at.
    """

    frozen_ms: float
    dump_ms: float
    commit_ms: float
    raw_bytes: int
    stored_bytes: int
    sampled_bytes: int


_EXTRA: Final = ("memory", "maps", "descriptors", "threads")
"""In this order: each trial has more of what it is for, and may have a little more of what comes before it."""


def each_of(tasks: Mapping[str, Task]) -> Load:
    """Milliseconds for each of a load.

    The task `plain` has little of everything, others have more of what they are named for.
    """
    plain = tasks["plain"]
    known = Load()
    for name in _EXTRA:
        task = tasks[name]
        more = Load(*(there - here for there, here in zip(task.load, plain.load, strict=True)))
        if getattr(more, name) > 0:
            cost = (task.ms - plain.ms - taken(known, more)) / getattr(more, name)
            known = known._replace(**{name: max(cost, 0.0)})
    return known._replace(processes=max(plain.ms - taken(known, plain.load), 0.0))


def taken(each: Load, load: Load) -> float:
    """Milliseconds for all of a load."""
    return sum(cost * amount for cost, amount in zip(each, load, strict=True))


def predicted(tree: Load, dump: DumpSpeed, images: ImageFiles, commit: CommitSpeed, sampled: int) -> Prediction:
    """What a dump of such a tree costs at these speeds; `sampled` bytes of it were stored on trial."""
    frozen_ms = dump.freeze_ms + taken(dump.each, tree)
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
