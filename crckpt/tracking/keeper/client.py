"""The keepers of trees, from outside: found, started, asked and ended."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from crckpt.errors import DumpFailed, HostCannot
from crckpt.host import proc
from crckpt.host.process import run
from crckpt.tracking.keeper.places import directory_of_keepers, place_of_keeper
from crckpt.tracking.keeper.server import Answer, Keeper, Request, is_trusted, peer
from crckpt.tracking.tracker import Round

_PATIENCE_S: Final = 60.0
_PATIENCE_TOLD_S: Final = 10.0
_PATIENCE_FROZEN_S: Final = 2.0
ENDED: Final = "the process that kept its tracker has ended"


class Unanswered(HostCannot):
    """A keeper is there, and takes too long, or what it says cannot be understood."""


class Session:
    """A connection to a keeper. Every method raises HostCannot if it has ended, or if the tree has, or Unanswered."""

    def __init__(self, connection: socket.socket, pid: int, *, lost: bool = False) -> None:
        """`pid` is the keeper's. `lost`: another was killed before this one was started."""
        self._connection = connection
        self._pid = pid
        self._lines = connection.makefile("rb")
        self.lost = ENDED if lost else ""

    def started(self) -> Keeper:
        """What a keeper says that was just started."""
        self._connection.settimeout(_PATIENCE_S)
        return _told(self._heard())

    def tell(self) -> Keeper:
        """Who it is."""
        return _told(self._asked(Request("tell"), _PATIENCE_TOLD_S))

    def begin(self) -> Round:
        """As `Tracker.begin`. Raises DumpFailed if another dump of this tree is going on."""
        answer = self._asked(Request("begin"))
        if answer.busy:
            raise DumpFailed(
                f"process {answer.busy} is copying or dumping this tree",
                hint="wait until it has ended; crckpt list shows what is being stored",
            )
        assert answer.began is not None
        return answer.began

    def stage(self, directories: tuple[Path, ...]) -> None:
        """Hand these over: they are removed once the base is no round in the last of them, or the keeper ends."""
        self._asked(Request("stage", directories=tuple(map(str, directories))))

    def frozen(self) -> None:
        """As `Tracker.frozen`. The tree does not wait for long."""
        self._asked(Request("frozen"), _PATIENCE_FROZEN_S)

    def committed(self, name: str) -> None:
        """As `Tracker.committed`."""
        self._asked(Request("committed", name))

    def end(self) -> None:
        """Let the keeper end; it has, and the tree is let go, when this returns: that waits for a dump that goes on."""
        with suppress(HostCannot):
            self._asked(Request("end"), None)

    def retire(self) -> None:
        """Let the keeper end as if it was terminated: the next dump starts another."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)

    def close(self) -> None:
        """The keeper stays."""
        self._lines.close()
        self._connection.close()

    def _asked(self, request: Request, patience_s: float | None = _PATIENCE_S) -> Answer:
        self._connection.settimeout(patience_s)
        try:
            self._connection.sendall(msgspec.json.encode(request) + b"\n")
        except OSError:
            raise HostCannot(ENDED) from None
        return self._heard()

    def _heard(self) -> Answer:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise self._unanswered("does not answer") from None
        except OSError:
            line = b""
        if not line:
            raise HostCannot(ENDED)
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError:
            raise self._unanswered("is of another crckpt") from None
        if answer.refused:
            raise HostCannot(answer.refused)
        return answer

    def _unanswered(self, what: str) -> Unanswered:
        hint = f"kill -KILL {self._pid} ends it, and harms nothing: the next dump is full"
        return Unanswered(f"the process that keeps its tracker, {self._pid}, {what}", hint=hint)


def session(root: proc.Process, criu: Path, *, start: bool) -> Session | None:
    """That of the tree's keeper, which is started if there is none and `start`, or if it was killed.

    None if nobody follows the tree. Raises HostCannot, which says why the tree cannot be followed.
    """
    found = running(root)
    if found is not None:
        return found
    lost = was_killed(root)
    return _started(root, criu, lost=lost) if start or lost else None


def was_killed(root: proc.Process) -> bool:
    """Whether the tree, which nobody follows, had a keeper that was killed: the next dump starts another."""
    return place_of_keeper(root).exists()


def running(root: proc.Process) -> Session | None:
    """That of the keeper that the tree has, if it has one."""
    return _connected(place_of_keeper(root))


def keepers(of: int | None = None) -> Iterator[tuple[Keeper, Session] | Unanswered]:
    """All of them, or those `of` the process with this PID, each with a session that the caller closes, or why not.

    What killed ones left is removed with the process whose keepers they were.
    """
    for path, root in _places(of):
        found = _connected(path)
        if found is None:
            if root is None:
                path.unlink(missing_ok=True)
            continue
        try:
            yield found.tell(), found
        except Unanswered as error:
            found.close()
            yield error
        except HostCannot:
            found.close()


def forget(of: int | None = None) -> bool:
    """That keepers of all processes, or `of` one, were killed: no dump says so, and starts another. Whether any was."""
    killed = [path for path, _ in _places(of) if _connected(path) is None]
    for path in killed:
        path.unlink(missing_ok=True)
    return bool(killed)


def _places(of: int | None) -> Iterator[tuple[Path, int | None]]:
    """The sockets, and the PIDs of the processes whose keepers they are; None of one that has ended."""
    with suppress(FileNotFoundError):
        for path in sorted(directory_of_keepers().iterdir()):
            if not path.is_socket():
                continue
            pid, _, start = path.name.partition("-")
            process = proc.read_process(int(pid)) if pid.isdecimal() else None
            root = process.pid if process is not None and str(process.start) == start else None
            if of in (None, root):
                yield path, root


def _connected(path: Path) -> Session | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    if not is_trusted(connection):
        connection.close()
        return None
    return Session(connection, peer(connection))


def _started(root: proc.Process, criu: Path, *, lost: bool) -> Session:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    number = theirs.fileno()
    words = (sys.executable, "-P", "-m", "crckpt.tracking.keeper.server", str(root.pid), criu, str(number))
    with theirs:
        # It outlives us, and is never waited for.
        child = run.start(words, output=Path(os.devnull), keep=(number,), python_path=Path(__file__).parents[3])
        child.let_go()
    # The other end of a pair of sockets is, to the kernel, whoever made the pair.
    started = Session(ours, child.pid, lost=lost)
    try:
        started.started()
    except HostCannot:
        started.close()
        raise
    return started


def _told(answer: Answer) -> Keeper:
    assert answer.keeper is not None
    return answer.keeper
