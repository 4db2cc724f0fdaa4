"""The base that a dump or a round counts from: a checkpoint, or a round that was copied after one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from crckpt.model import CheckpointId


class CheckpointBase(Struct, frozen=True):
    """A checkpoint that is durable in its store."""

    id: CheckpointId


class RoundBase(Struct, frozen=True):
    """A round. Its images are in `directory`, which has the round's number as its name."""

    directory: Path

    @property
    def number(self) -> int:
        """The number of rounds since the last checkpoint, this one included."""
        return int(self.directory.name)


Base: TypeAlias = CheckpointBase | RoundBase


class WholeProcess(Struct, frozen=True):
    """A process all of whose pages count as written, and a clause that names it and says why."""

    pid: int
    why: str


class DumpBasis(Struct, frozen=True):
    """The way to make the dump or round that begins now.

    Without `base` it is full, and `why` says so in one clause. If it `tracks`, CRIU resets the bits, so that the next
    dump can count from this one. `whole` are processes that have no part in the base.
    """

    base: Base | None
    why: str
    tracks: bool
    whole: tuple[WholeProcess, ...]
