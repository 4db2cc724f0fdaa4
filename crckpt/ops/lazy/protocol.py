"""The messages between a restore and the helper that fills a tree's memory."""

from __future__ import annotations

from msgspec import Struct

from crckpt.host.proc import Identity
from crckpt.model import CheckpointId, PackId
from crckpt.ops.lazy.plan import ProcessPlan


class Plan(Struct, frozen=True, tag=True):
    """The store, the checkpoint, and what is to be filled of its processes.

    `hot` are packs whose pages are there before the tree runs. Until the first socket is closed, the helper fills only
    what threads wait for. With `manifest` the store does not have the checkpoint yet: then it does so until Arrived,
    fetches pages over its second socket, and ends the tree if the first one is closed before that.
    """

    store: str
    checkpoint: CheckpointId
    processes: tuple[ProcessPlan, ...]
    hot: frozenset[PackId]
    manifest: bytes = b""


class Started(Struct, frozen=True, tag=True):
    """The first message: all PIDs and TIDs of the helper."""

    tids: tuple[int, ...]


class Attach(Struct, frozen=True, tag=True):
    """The processes of the tree wait in the hold. `tasks`: by the PID in the checkpoint.

    Answered by Attached, and then by Planned.
    """

    root: int
    tasks: dict[int, Identity]


class Attached(Struct, frozen=True, tag=True):
    """The tree's missing pages are ours. `whole`: PIDs of processes that were filled, as they could not be entered."""

    whole: tuple[int, ...] = ()


class Planned(Struct, frozen=True, tag=True):
    """The helper knows where the pages lie: the tree may run."""


class Arrived(Struct, frozen=True, tag=True):
    """All packs are in the store. Answered by Filled."""


class Filled(Struct, frozen=True, tag=True):
    """The memory of the tree is complete."""


class FillFailed(Struct, frozen=True, tag=True):
    """The helper ends, before the tree runs."""

    message: str


class FillerMessage(Struct, frozen=True):
    """A message, as it is sent."""

    content: Started | Plan | Planned | Attach | Attached | Arrived | Filled | FillFailed
