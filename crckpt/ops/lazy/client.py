"""Start the helper that fills a tree's memory, and tell it which tree."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.helper.channel import HelperEnded, HelperSilent
from crckpt.helper.kinds import FILLER
from crckpt.helper.start import start_helper
from crckpt.host import proc
from crckpt.model import CheckpointId, PackId
from crckpt.ops.lazy.plan import ProcessPlan
from crckpt.ops.lazy.protocol import (
    Arrived,
    Attach,
    Attached,
    Filled,
    FillerMessage,
    FillFailed,
    Plan,
    Planned,
    Started,
    serve_fetches,
)
from crckpt.store.late_backend import Fetch

_PATIENCE_S: Final = 60.0

_Answer = TypeVar("_Answer", Started, Planned, Attached, Filled)


class Filler:
    """The helper, started before it is needed: it takes a moment to start."""

    def __init__(self, command: tuple[str, ...] = ()) -> None:
        """Start it, perhaps by another `command`. Raises HostCannot, RestoreFailed.

        `hot` may be set before the restore: packs with pages that the program wrote last, so that it is likely to need
        them first. The restore fills these before the tree runs.
        """
        self.hot = frozenset[PackId]()
        self._packs, their_packs = socket.socketpair(socket.AF_UNIX)
        self._manifest = b""
        with their_packs:
            number = their_packs.fileno()
            self._helper = start_helper(FILLER, str(number), keep=(number,), command=command)
        self._has_tree = False
        self.tids = frozenset(self._receive(Started).tids)

    def close(self) -> None:
        """Let it go on alone, and fill all memory, if it has a tree; otherwise it ends. May be called again."""
        self._packs.close()
        if self._has_tree:
            self._helper.leave()
        else:
            self._helper.end()

    def serve(self, manifest: bytes, fetch: Fetch) -> None:
        """Serve packs that come later: the helper reads them by `fetch` until `wait_until_filled`."""
        self._manifest = manifest
        serve_fetches(self._packs.dup(), fetch)

    def wait_until_filled(self) -> None:
        """Report that all packs are in the store, and wait until the memory is complete. Raises RestoreFailed."""
        if self._has_tree:
            self._send(Arrived())
            self._receive(Filled, None)

    def plan(self, store: Path, checkpoint: CheckpointId, processes: tuple[ProcessPlan, ...]) -> None:
        """Let it fill the pages of a checkpoint."""
        self._send(Plan(str(store), checkpoint, processes, self.hot, self._manifest))

    def attach(self, root: int, pids: Mapping[int, int]) -> None:
        """In the hold: let it supply what processes lack, by their PIDs in the checkpoint. Raises RestoreFailed."""
        tasks = {inner: found for inner, pid in pids.items() if (found := proc.identify(pid)) is not None}
        self._send(Attach(root, tasks))
        self._has_tree = True
        self._receive(Attached)

    def check(self) -> None:
        """Wait until it knows where the pages lie, if it has a tree. Raise RestoreFailed if it has ended."""
        if self._has_tree:
            self._receive(Planned)
        # It sends nothing more, unless it fails.
        with suppress(HelperSilent):
            try:
                _take(self._helper.receive(FillerMessage, 0), Filled)
            except HelperEnded:
                raise _failure("it was killed") from None

    def _send(self, content: Plan | Attach | Arrived) -> None:
        with _failures_named():
            self._helper.send(FillerMessage(content), within_s=_PATIENCE_S)

    def _receive(self, kind: type[_Answer], within_s: float | None = _PATIENCE_S) -> _Answer:
        with _failures_named():
            message = self._helper.receive(FillerMessage, within_s)
        return _take(message, kind)


def _take(message: FillerMessage, kind: type[_Answer]) -> _Answer:
    content = message.content
    if not isinstance(content, kind):
        raise _failure(content.message if isinstance(content, FillFailed) else "unexpected answer")
    return content


@contextmanager
def _failures_named() -> Iterator[None]:
    try:
        yield
    except HelperEnded:
        raise _failure("it was killed") from None
    except HelperSilent:
        raise _failure("it does not answer") from None


@contextmanager
def started_filler(taken: AbstractSet[int]) -> Iterator[Filler]:
    """Start a helper that has none of the PIDs `taken`, which the tree needs. Raises HostCannot, RestoreFailed."""
    with ExitStack() as useless:
        # Until there is a good one, the others keep their PIDs.
        while (filler := Filler()).tids & taken:
            useless.callback(filler.close)
    try:
        yield filler
    finally:
        filler.close()


def _failure(why: str) -> RestoreFailed:
    return RestoreFailed(f"the helper that fills the memory of the tree failed: {why}", state=NOTHING_LEFT)
