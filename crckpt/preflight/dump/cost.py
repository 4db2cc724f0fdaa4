"""What a dump of a tree would cost, worked out from the tree's size and what trials on this host took. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct


class Load(NamedTuple):
    """What the time of a dump grows with, in one process or a tree. `memory` is bytes that are in no file."""

    memory: float = 0
    maps: float = 0
    descriptors: float = 0
    threads: float = 0
    processes: float = 0


class DumpSpeed(Struct, frozen=True):
    """How quickly CRIU dumps: milliseconds for each byte of memory, and before and after the freeze.

    `slowness` is how many times as long as `usual_ms` all takes that is no memory.
    """

    byte_ms: float
    slowness: float
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


_ONCE_MS: Final = 5.0
_EACH_MS: Final = Load(memory=0, maps=0.026, descriptors=0.055, threads=0.35, processes=2.5)
"""What CRIU 4.2.1 takes in a virtual machine with two cores of 2024. Only how these compare counts: how quick this host
is, is measured."""


def usual_ms(load: Load) -> float:
    """How long a host that we know keeps a tree frozen, but for its memory."""
    return _ONCE_MS + sum(cost * amount for cost, amount in zip(_EACH_MS, load, strict=True))


def dump_speed(load: Load, memory_ms: float, frozen_ms: float, dump_ms: float) -> DumpSpeed:
    """From a trial dump of such a tree: how long its memory took, all of its freeze, and all."""
    return DumpSpeed(
        byte_ms=memory_ms / load.memory,
        slowness=max(frozen_ms - memory_ms, 0.0) / usual_ms(load),
        around_ms=max(dump_ms - frozen_ms, 0.0),
    )


def predict_cost(tree: Load, dump: DumpSpeed, images: ImageFiles, commit: CommitSpeed, sampled: int) -> Prediction:
    """What a dump of such a tree costs at these speeds; `sampled` bytes of it were stored on trial."""
    frozen_ms = dump.byte_ms * tree.memory + dump.slowness * usual_ms(tree)
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
