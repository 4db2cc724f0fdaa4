"""Find, start, ask and end the keepers of trees."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import DumpFailed, HostCannot
from crckpt.host import proc
from crckpt.host.peers import is_trusted, peer_pid
from crckpt.host.process import run
from crckpt.host.process.send_signal import send_signal_if
from crckpt.host.steps import limit
from crckpt.tracking.dump_basis import Base, DumpBasis
from crckpt.tracking.keeper.protocol import (
    Answer,
    Keeper,
    KeeperRequest,
    decode_answer,
    encode,
    make_commit_request,
)
from crckpt.tracking.keeper.sockets import ENDED_MARK, ended_mark, keeper_directory, keeper_socket

_TIME: Final = struct.Struct("@ll")  # struct timeval
_PATIENCE_S: Final = 60.0
# `crckpt trackers` asks all keepers in turn: one that is stopped must not keep it for long.
_PATIENCE_TELL_S: Final = limit("CRCKPT_ANSWER_S", 10)
# The tree stands still until the keeper answers.
_PATIENCE_FROZEN_S: Final = 2.0
ENDED: Final = "its tracker has ended"
KILLED: Final = "its tracker was ended (by a signal, with the systemd unit that started it, or by an upgrade)"


class Unanswered(HostCannot):
    """A keeper runs, but takes too long, or its answer cannot be decoded."""


class Untracked(HostCannot):
    """No method tracks the tree; the message says why."""


class KeeperSession:
    """A connection to a keeper. Methods raise HostCannot if the keeper or the tree has ended, or Unanswered."""

    def __init__(self, connection: socket.socket, pid: int, *, why_new: str = "") -> None:
        """`pid` is the keeper's. `why_new` is why a tree that was tracked before needed a new keeper, or empty."""
        self._connection = connection
        self._pid = pid
        self._lines = connection.makefile("rb")
        self.why_new = why_new

    def wait_until_started(self) -> Keeper:
        """Return the first answer of a keeper that was just started."""
        self._connection.settimeout(_PATIENCE_S)
        return _keeper_in(self._read_answer())

    def describe(self) -> Keeper:
        """Ask for the keeper's state."""
        return _keeper_in(self._ask(KeeperRequest("tell"), _PATIENCE_TELL_S))

    def begin(self) -> DumpBasis:
        """Begin a dump, as `Tracker.begin`. Raises DumpFailed if another dump of this tree is going on."""
        answer = self._ask(KeeperRequest("begin"))
        if answer.busy:
            raise DumpFailed(
                f"process {answer.busy} is copying or dumping this tree",
                hint="wait until it has ended; crckpt list shows what is being stored",
            )
        assert answer.began is not None
        return answer.began.basis

    def hand_over(self, directories: tuple[Path, ...]) -> None:
        """Have the keeper remove these once its base is no round in the last of them, or when it ends."""
        self._ask(KeeperRequest("stage", directories=tuple(map(str, directories))))

    def check_freeze(self) -> None:
        """Have the keeper look at the frozen tree, as `Tracker.check_freeze`, within two seconds."""
        self._ask(KeeperRequest("frozen"), _PATIENCE_FROZEN_S)

    def commit(self, base: Base) -> None:
        """Report that the dump or round is kept, as `Tracker.commit`."""
        self._ask(make_commit_request(base))

    def end(self) -> None:
        """End the keeper. Returns when it has let the tree go, which waits for a dump that is going on."""
        with suppress(HostCannot):
            self._ask(KeeperRequest("end"), None)

    def retire(self) -> None:
        """End the keeper as if it was terminated: the next dump starts another."""
        self._connection.setblocking(False)
        send_signal_if(self._pid, signal.SIGTERM, self._is_connected)

    def _is_connected(self) -> bool:
        with suppress(BlockingIOError):
            return self._connection.recv(1, socket.MSG_PEEK) != b""
        return True

    def close(self) -> None:
        """Close the connection. The keeper stays."""
        self._lines.close()
        self._connection.close()

    def _ask(self, request: KeeperRequest, patience_s: float | None = _PATIENCE_S) -> Answer:
        self._connection.settimeout(patience_s)
        try:
            self._connection.sendall(encode(request))
        except OSError:
            raise HostCannot(ENDED) from None
        return self._read_answer()

    def _read_answer(self) -> Answer:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise self._no_answer("does not answer") from None
        except OSError:
            line = b""
        if not line:
            raise HostCannot(ENDED)
        answer = decode_answer(line)
        if answer is None:
            raise self._no_answer("belongs to another version of crckpt")
        if answer.untracked:
            raise Untracked(answer.untracked)
        if answer.refused:
            raise HostCannot(answer.refused)
        return answer

    def _no_answer(self, what: str) -> Unanswered:
        hint = f"end it: kill -KILL {self._pid}; this does no harm: the next dump is full"
        return Unanswered(f"its tracker (process {self._pid}) {what}", hint=hint)


def open_session(root: proc.Process, criu: Path, *, start: bool, why_new: str = "") -> KeeperSession | None:
    """Connect to the tree's keeper. Start one if none runs and `start`, or if it was killed.

    `why_new` is why a tree that was tracked before has no keeper, unless it was killed. None if the tree has no keeper.
    Raises HostCannot, which says why the tree cannot be tracked.
    """
    session = find_session(root)
    if session is not None:
        return session
    killed = was_killed(root)
    return _start_keeper(root, criu, KILLED if killed else why_new) if start or killed else None


def was_killed(root: proc.Process) -> bool:
    """Return whether the tree, which has no keeper now, had one that was killed: the next dump starts another."""
    # A keeper that ends by itself removes its socket.
    return keeper_socket(root).exists()


def was_ended(root: proc.Process) -> bool:
    """Return whether the tree, which has no keeper now, had one that was ended on request."""
    return ended_mark(root).exists()


def mark_ended(root: int) -> None:
    """Remember that the keeper of the tree below `root` was ended on request, if that process still runs."""
    process = proc.read_process(root)
    # This is only for a sentence of the next dump.
    with suppress(OSError):
        if process is not None:
            ended_mark(process).touch(mode=0o600)


def find_session(root: proc.Process) -> KeeperSession | None:
    """Connect to the keeper that the tree has, if it has one. Raises Unanswered."""
    return _connect(keeper_socket(root))


def keepers(of: int | None = None) -> Iterator[tuple[Keeper, KeeperSession] | Unanswered]:
    """Yield all keepers, or those `of` the process with this PID: with a session that the caller closes, or why not.

    Sockets that killed keepers left are removed once their tree has ended.
    """
    for path, root in _find_sockets(of):
        try:
            session = _connect(path)
        except Unanswered as error:
            yield error
            continue
        if session is None:
            if root is None:
                path.unlink(missing_ok=True)
            continue
        try:
            yield session.describe(), session
        except Unanswered as error:
            session.close()
            yield error
        except HostCannot:
            session.close()


def forget_killed(of: int | None = None) -> bool:
    """Forget that keepers were killed, all or that `of` a process: no dump starts another. Return whether any was."""
    killed = [(path, root) for path, root in _find_sockets(of) if _has_ended(path)]
    for path, root in killed:
        path.unlink(missing_ok=True)
        if root is not None:
            mark_ended(root)
    return bool(killed)


def _has_ended(path: Path) -> bool:
    try:
        session = _connect(path)
    except Unanswered:
        return False
    if session is not None:
        session.close()
    return session is None


def _find_sockets(of: int | None) -> Iterator[tuple[Path, int | None]]:
    """Yield each keeper's socket, and the PID of its tree's root; None if that has ended."""
    with suppress(FileNotFoundError):
        for path in sorted(keeper_directory().iterdir()):
            is_mark = path.suffix == ENDED_MARK
            if not (is_mark or path.is_socket()):
                continue
            named = proc.parse_identity(path.name.removesuffix(ENDED_MARK))
            root = named.pid if named is not None and named.keeps_pid else None
            if is_mark:
                if root is None and path.is_file():
                    path.unlink(missing_ok=True)
                continue
            if of in (None, root):
                yield path, root


def _connect(path: Path) -> KeeperSession | None:
    """Connect to the keeper of this socket; None if it has ended. Raises Unanswered if its queue stays full."""
    connection = socket.socket(socket.AF_UNIX)
    # The queue of a keeper that is stopped fills with those who have given up, and then the kernel lets us wait.
    patience = _TIME.pack(*divmod(int(_PATIENCE_TELL_S * 1_000_000), 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BlockingIOError:
        connection.close()
        hint = f"end it: fuser -k {path} (package psmisc); this does no harm: the next dump is full"
        raise Unanswered(f"the tracker of PID {path.name.partition('-')[0]} does not answer", hint=hint) from None
    if not is_trusted(connection):
        connection.close()
        return None
    return KeeperSession(connection, peer_pid(connection))


def _start_keeper(root: proc.Process, criu: Path, why_new: str) -> KeeperSession:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    number = theirs.fileno()
    # -P: Python takes no module from the current directory, which may be another user's.
    words = (sys.executable, "-P", "-m", "crckpt.tracking.keeper.server", str(root.pid), criu, str(number))
    # Closed here once the keeper has it: so its end is the end of the connection.
    with theirs:
        # It outlives this process, and is never waited for.
        child = run.start(words, output=Path(os.devnull), keep=(number,), python_path=Path(__file__).parents[3])
        child.abandon()
    # Of a socket pair, the kernel names as peer the process that made it: the keeper's PID comes from `child`.
    session = KeeperSession(ours, child.pid, why_new=why_new)
    try:
        session.wait_until_started()
    except HostCannot:
        session.close()
        raise
    ended_mark(root).unlink(missing_ok=True)
    return session


def _keeper_in(answer: Answer) -> Keeper:
    assert answer.keeper is not None
    return answer.keeper
