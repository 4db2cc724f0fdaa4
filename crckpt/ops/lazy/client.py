"""Start the helper that fills a tree's memory, tell it which tree, and send it parts of packs that it asks for."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import NOTHING_LEFT, CrckptError, IntegrityError, RestoreFailed
from crckpt.helper.channel import HelperEnded, HelperSilent
from crckpt.helper.kinds import FILLER
from crckpt.helper.start import start_helper
from crckpt.host import proc
from crckpt.host.proc import Identity
from crckpt.host.process.signals import start_thread
from crckpt.model import CheckpointId, PackId
from crckpt.ops.lazy.plan import ProcessPlan
from crckpt.store.backend.local import Fetch, Fetched

_PATIENCE_S: Final = 60.0


class Plan(Struct, frozen=True):
    """The first request: the store, the checkpoint, and what is to be filled of its processes.

    `hot` are packs whose pages are there before the tree runs. Until the first socket is closed, the helper fills only
    what threads wait for. With `manifest` the store does not have the checkpoint yet: then it does so until Arrived,
    fetches pages over its second socket, and ends the tree if the first one is closed before that.
    """

    store: str
    checkpoint: CheckpointId
    processes: tuple[ProcessPlan, ...]
    hot: frozenset[PackId]
    manifest: bytes = b""


class Attach(Struct, frozen=True):
    """The tree's `tasks`, by the PID in the checkpoint, wait in the hold.

    Answered once the tree's missing pages are the helper's, and again once it knows where they lie: the tree may run.
    """

    root: int
    tasks: dict[int, Identity]


class Arrived(Struct, frozen=True):
    """All packs are in the store. Answered once the memory of the tree is complete."""


class FillerAnswer(Struct, frozen=True):
    """The next step is done, or why it `failed`: then the helper ends. The first one has its PIDs and TIDs."""

    failed: str = ""
    tids: tuple[int, ...] = ()


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
        self.tids = frozenset(self._receive().tids)

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
        start_thread(partial(_serve_fetches, self._packs.dup(), fetch))

    def wait_until_filled(self) -> None:
        """Report that all packs are in the store, and wait until the memory is complete. Raises RestoreFailed."""
        if self._has_tree:
            self._send(Arrived())
            self._receive(None)

    def plan(self, store: Path, checkpoint: CheckpointId, processes: tuple[ProcessPlan, ...]) -> None:
        """Let it fill the pages of a checkpoint."""
        self._send(Plan(str(store), checkpoint, processes, self.hot, self._manifest))

    def attach(self, root: int, pids: Mapping[int, int]) -> None:
        """In the hold: let it supply what processes lack, by their PIDs in the checkpoint. Raises RestoreFailed."""
        tasks = {inner: found for inner, pid in pids.items() if (found := proc.identify(pid)) is not None}
        self._send(Attach(root, tasks))
        self._has_tree = True
        self._receive()

    def check(self) -> None:
        """Wait until it knows where the pages lie, if it has a tree. Raise RestoreFailed if it has ended."""
        if self._has_tree:
            self._receive()
        # It sends nothing more, unless it fails.
        with _failures_named(), suppress(HelperSilent):
            raise _failure(self._helper.receive(FillerAnswer, 0).failed or "unexpected answer")

    def _send(self, request: Plan | Attach | Arrived) -> None:
        with _failures_named():
            self._helper.send(request, within_s=_PATIENCE_S)

    def _receive(self, within_s: float | None = _PATIENCE_S) -> FillerAnswer:
        with _failures_named():
            answer = self._helper.receive(FillerAnswer, within_s)
        if answer.failed:
            raise _failure(answer.failed)
        return answer


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


@contextmanager
def _failures_named() -> Iterator[None]:
    try:
        yield
    except HelperEnded:
        raise _failure("it was killed") from None
    except HelperSilent:
        raise _failure("it does not answer") from None


def _failure(why: str) -> RestoreFailed:
    return RestoreFailed(f"the helper that fills the memory of the tree failed: {why}", state=NOTHING_LEFT)


# A request for a part of a pack: the digest, the offset, the number of bytes.
_REQUEST: Final = struct.Struct("=64sQQ")
# The size of the pack, and of the part that follows.
_ANSWER: Final = struct.Struct("=QQ")


def fetches_over(connection: socket.socket) -> Fetch:
    """In the helper: make a function that fetches parts of packs, for several threads.

    It raises OSError, IntegrityError if nobody answers any more.
    """
    lock = threading.Lock()

    def fetch(digest: PackId, offset: int, size: int) -> Fetched:
        with lock:
            connection.sendall(_REQUEST.pack(digest.encode(), offset, size))
            whole, length = _ANSWER.unpack(_receive_bytes(connection, _ANSWER.size))
            return Fetched(whole, _receive_bytes(connection, length))

    return fetch


def _serve_fetches(connection: socket.socket, fetch: Fetch) -> None:
    """Answer until the connection ends, or a part cannot be fetched; then close it."""
    # The helper has ended, or will find that nobody answers.
    with connection, suppress(CrckptError, OSError):
        while True:
            digest, offset, size = _REQUEST.unpack(_receive_bytes(connection, _REQUEST.size))
            found = fetch(digest.decode(), offset, size)
            connection.sendall(_ANSWER.pack(found.size, len(found.content)) + found.content)


def _receive_bytes(connection: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    done = 0
    while done < size:
        count = connection.recv_into(memoryview(content)[done:])
        if not count:
            raise IntegrityError("the connection to the other host was lost")
        done += count
    return bytes(content)
