"""Predict what a dump costs, from the size of the tree and from trials on this host."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct


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
