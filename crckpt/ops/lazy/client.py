"""Start the helper that fills a tree's memory, and tell it which tree."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.host import proc
from crckpt.host.process import run
from crckpt.model import CheckpointId
from crckpt.ops.lazy.fetch import serve_fetches
from crckpt.ops.lazy.plan import ProcessPlan
from crckpt.ops.lazy.protocol import (
    Arrived,
    Attach,
    Attached,
    Failed,
    Filled,
    Message,
    Plan,
    Planned,
    Started,
    decode,
    encode,
)
from crckpt.store.late_backend import Fetch

# -P: Python takes no module from the current directory, which may be another user's.
_HELPER: Final = (sys.executable, "-P", "-m", "crckpt.ops.lazy.server")
_PATIENCE_S: Final = 60.0

_Answer = TypeVar("_Answer", Started, Planned, Attached, Filled)


class Filler:
    """The helper, started before it is needed: it takes a moment to start."""

    def __init__(self, words: tuple[str, ...] = _HELPER) -> None:
        """Start it: by `words`, and the numbers of two descriptors. Raises HostCannot, RestoreFailed.

        `hot` may be set before the restore: packs with pages that the program wrote last, so that it is likely to need
        them first. The restore fills these before the tree runs.
        """
        self.hot = frozenset[str]()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX)
        self._packs, their_packs = socket.socketpair(socket.AF_UNIX)
        self._manifest = b""
        with theirs, their_packs:
            keep = (theirs.fileno(), their_packs.fileno())
            self._child = run.start(
                (*words, *map(str, keep)),
                output=Path(os.devnull),
                keep=keep,
                python_path=Path(__file__).parents[3],
            )
        self._connection.settimeout(_PATIENCE_S)
        self._has_tree = False
        self._lines = self._connection.makefile("rb")
        self.tids = frozenset(self._receive(Started).tids)

    def close(self) -> None:
        """Let it go on alone, and fill all memory, if it has a tree; otherwise it ends. May be called again."""
        self._lines.close()
        self._connection.close()
        self._packs.close()
        if self._has_tree:
            self._child.abandon()
        else:
            self._child.wait()

    def serve(self, manifest: bytes, fetch: Fetch) -> None:
        """Serve the packs of a checkpoint that come later: the helper reads them by `fetch` until `wait_until_filled`.

        If we end before that, it ends the tree.
        """
        self._manifest = manifest
        serve_fetches(self._packs.dup(), fetch)

    def wait_until_filled(self) -> None:
        """Report that all packs are in the store, and wait until the memory is complete. Raises RestoreFailed."""
        if self._has_tree:
            self._connection.settimeout(None)
            self._send(Arrived())
            self._receive(Filled)

    def plan(self, store: Path, checkpoint: CheckpointId, processes: tuple[ProcessPlan, ...]) -> None:
        """Let it fill the pages of a checkpoint."""
        self._send(Plan(str(store), checkpoint, processes, self.hot, self._manifest))

    def attach(self, root: int, pids: Mapping[int, int]) -> None:
        """In the hold: let it supply the pages that the processes lack; `pids` are ours by those in the checkpoint.

        Raises RestoreFailed.
        """
        tasks = {inner: found for inner, pid in pids.items() if (found := proc.identify(pid)) is not None}
        self._send(Attach(root, tasks))
        self._has_tree = True
        self._receive(Attached)

    def check(self) -> None:
        """Wait until it knows where the pages lie, if it has a tree. Raise RestoreFailed if it has ended."""
        if self._has_tree:
            self._receive(Planned)
        self._connection.setblocking(False)
        with suppress(BlockingIOError):
            self._connection.recv(1)
            raise _failure("it was killed")

    def _send(self, message: Message) -> None:
        try:
            self._connection.sendall(encode(message))
        except OSError as error:
            raise _failure(error.strerror or str(error)) from error

    def _receive(self, kind: type[_Answer]) -> _Answer:
        try:
            line = self._lines.readline()
            message = decode(line) if line else Failed("it was killed")
        except (OSError, msgspec.MsgspecError) as error:
            raise _failure(str(error)) from error
        if not isinstance(message, kind):
            raise _failure(message.message if isinstance(message, Failed) else "unexpected answer")
        return message


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
