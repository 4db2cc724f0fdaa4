"""The requests to a keeper and its answers. Another release of crckpt may send them: they keep their words and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.model import CheckpointId
from crckpt.tracking.dump_basis import Base, CheckpointBase, DumpBasis, RoundBase, WholeProcess

ENDED_MARK: Final = ".ended"
"""How the record ends of a keeper that was ended on request."""


class KeeperRequest(Struct, frozen=True):
    """One request. `name` is the base that `committed` reports, as `base_name` spells it.

    `stage` hands over `directories`. The keeper removes them once its base is no round in the last of them.
    """

    do: Literal["describe", "begin", "stage", "frozen", "committed", "end"]
    name: str = ""
    directories: tuple[str, ...] = ()


class Keeper(Struct, frozen=True):
    """A keeper, as it describes itself. `why` is why it has this tracker.

    `base` is what the bits count from, as `base_name` spells it. Without one the next dump is full, and `why_full` says
    why. `dumping` is the PID of the crckpt that dumps the tree now, or 0. A dump that tracks adds `environment` to that
    of the CRIU at `criu`, as long as `identity` is what `preload.library.identity` returns.
    """

    pid: int
    root: int
    comm: str
    tracker: str
    why: str
    criu: str
    environment: dict[str, str]
    base: str = ""
    why_full: str = ""
    dumping: int = 0
    identity: str = ""

    @property
    def sentence(self) -> str:
        """The tracker, and why it."""
        return f"tracker: {self.tracker} ({self.why})"

    @property
    def counts_from(self) -> Base | None:
        """The base of the next dump; None if it is to be full."""
        return _parse_base(self.base)


class BeginAnswer(Struct, frozen=True):
    """A `DumpBasis` as it is sent."""

    base: str
    why: str
    tracks: bool
    whole: tuple[WholeProcess, ...]

    @property
    def basis(self) -> DumpBasis:
        return DumpBasis(_parse_base(self.base), self.why, self.tracks, self.whole)


class Answer(Struct, frozen=True):
    """One answer. `busy` is the PID of another crckpt that dumps this tree; `refused` is why a request was refused.

    `untracked` is why no keeper was started: nothing tracks the tree.
    """

    keeper: Keeper | None = None
    began: BeginAnswer | None = None
    busy: int = 0
    refused: str = ""
    untracked: str = ""


def base_name(base: Base | None) -> str:
    """Return a base as it is sent: a checkpoint by its id, a round by its path, none by an empty string."""
    if base is None:
        return ""
    return base.id if isinstance(base, CheckpointBase) else str(base.directory)


def _parse_base(name: str) -> Base | None:
    if not name:
        return None
    # A round's path is absolute; an id has no slash.
    return RoundBase(Path(name)) if "/" in name else CheckpointBase(CheckpointId(name))


def read_committed_base(request: KeeperRequest) -> Base:
    """Return the base that `committed` reports. Raises HostCannot if it names none."""
    base = _parse_base(request.name)
    if base is None:
        raise HostCannot("the request names no checkpoint or round")
    return base
