"""A small process that follows a tree from one dump to the next: it holds the tracker, and ends with the tree.

Run as `python -m crckpt.tracking.keeper.server PID CRIU DESCRIPTOR`. Whoever connects to its socket, or holds the other
end of DESCRIPTOR, asks and is answered, in lines of JSON. The connection that asks to begin is a dump until it asks
`committed` or goes away, and there is one at a time; its images may need the rounds, so that the keeper stays until it
is over. So it does after a SIGTERM, but leaves its socket then, as if it was killed: the next dump says why it is full.
Killed, it leaves nothing in the tree: every page counts as written then.

Only root and the keeper's own user are answered. Who asks what nobody understands is told so, whose line has no end is
hung up on, and who says nothing keeps nobody waiting.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from crckpt.errors import CrckptError
from crckpt.host import proc
from crckpt.host.disk.files import remove_tree
from crckpt.host.disk.runtime_directory import make_for
from crckpt.tracking.keeper.places import place_of_keeper
from crckpt.tracking.preload import library
from crckpt.tracking.tracker import Round, Tracker, choose

_PEER: Final = struct.Struct("iII")
_LONGEST: Final = 64 << 10
"""Bytes of a request."""
_MOST_CALLERS: Final = 64
_PATIENCE_S: Final = 10.0
"""How long a caller may take to read its answer."""
_PAUSE_S: Final = 0.1


class Request(Struct, frozen=True):
    """`name` is of the dump that was committed.

    `stage` hands over `directories`, which go when the base is no longer in the last of them: rounds are staged there.
    """

    do: Literal["tell", "begin", "stage", "frozen", "committed", "end"]
    name: str = ""
    directories: tuple[str, ...] = ()


class Keeper(Struct, frozen=True):
    """Who follows which tree, and how. `why` is the sentence of the choice.

    `base` is what the bits count from: a checkpoint's id, or the directory of a round that is staged. Without one the
    next dump is full, and `why_full` says why.

    `dumping` is the PID of who dumps the tree at this moment, or 0; `criu` takes `environment` in a dump that tracks,
    as long as `identity` is what `preload.identity` says.
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


class Answer(Struct, frozen=True):
    """`busy` is the PID of another that dumps this tree; `refused` is why something cannot be."""

    keeper: Keeper | None = None
    began: Round | None = None
    busy: int = 0
    refused: str = ""


def peer(connection: socket.socket) -> int:
    """The PID of who is at the other end."""
    return _credentials(connection)[0]


def is_trusted(connection: socket.socket) -> bool:
    """Whether root or our own user is at the other end."""
    return _credentials(connection)[1] in (0, os.geteuid())


def _credentials(connection: socket.socket) -> tuple[int, int]:
    pid, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid), int(user)


class _Caller:
    """A connection. `pid` is who is at its other end; `has_asked` once it has said anything that is understood."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(_PATIENCE_S)
        self._heard = bytearray()
        self.pid = peer(connection)
        self.has_asked = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def asked(self) -> tuple[Request, ...] | None:
        """What it asks by now, without waiting for the rest of a line; None if it has gone, or says too much."""
        try:
            heard = self._connection.recv(_LONGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        except OSError:
            return None
        *lines, rest = (bytes(self._heard) + heard).split(b"\n")
        self._heard[:] = rest
        if not heard or len(rest) > _LONGEST:
            return None
        requests = tuple(request for line in lines if (request := self._understood(line)))
        self.has_asked |= bool(requests)
        return requests

    def answer(self, answer: Answer) -> None:
        try:
            self._connection.sendall(msgspec.json.encode(answer) + b"\n")
        except OSError:
            # It has gone, or does not read: either is heard next.
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _understood(self, line: bytes) -> Request | None:
        try:
            return msgspec.json.decode(line, type=Request)
        except (msgspec.DecodeError, RecursionError):
            self.answer(Answer(refused="what was asked cannot be understood: it is of another crckpt"))
            return None


class _Service:
    """Answers until the tree has ended, or until it is told to end, and until no dump is going on."""

    def __init__(self, tracker: Tracker, told: Keeper) -> None:
        self._tracker = tracker
        self._told = told
        self._dumping: _Caller | None = None
        self._staged: tuple[str, ...] = ()
        self._ending = False
        self._enders: list[_Caller] = []

    def serve(self, root: int, terminated: int, listener: socket.socket, first: _Caller) -> bool:
        """Until the end; whether a SIGTERM brought it. `root` is a pidfd; `terminated` can be read after a SIGTERM."""
        is_terminated = False
        with selectors.DefaultSelector() as waiting:
            waiting.register(root, selectors.EVENT_READ)
            waiting.register(terminated, selectors.EVENT_READ)
            waiting.register(listener, selectors.EVENT_READ)
            waiting.register(first, selectors.EVENT_READ)
            while not self._ending or self._dumping is not None:
                for key, _ in waiting.select():
                    if key.fileobj in (root, terminated):
                        waiting.unregister(key.fileobj)
                        self._ending = True
                        is_terminated |= key.fileobj == terminated
                        continue
                    if key.fileobj is listener:
                        self._accept(listener, waiting)
                        continue
                    caller = key.fileobj
                    assert isinstance(caller, _Caller)
                    # One that went to make room may be in what was waiting.
                    requests = caller.asked() if caller.fileno() >= 0 else ()
                    if requests is None:
                        waiting.unregister(caller)
                        self._gone(caller)
                        continue
                    for request in requests:
                        self._ask(caller, request)
        return is_terminated

    def _accept(self, listener: socket.socket, waiting: selectors.BaseSelector) -> None:
        """Let another in. Where there are too many, the one goes that is there for longest and has asked nothing."""
        try:
            connection, _ = listener.accept()
        except OSError:
            # It has gone again, or there are no descriptors: who waits is heard when there are.
            time.sleep(_PAUSE_S)
            return
        if not is_trusted(connection):
            connection.close()
            return
        callers = [key.fileobj for key in waiting.get_map().values() if isinstance(key.fileobj, _Caller)]
        if len(callers) >= _MOST_CALLERS:
            silent = next((caller for caller in callers if not caller.has_asked and caller is not self._dumping), None)
            if silent is None:
                connection.close()
                return
            waiting.unregister(silent)
            silent.close()
        waiting.register(_Caller(connection), selectors.EVENT_READ)

    def _ask(self, caller: _Caller, request: Request) -> None:
        if request.do == "end":
            # They are answered by hearing us go, which is to be the last thing.
            self._ending = True
            self._enders.append(caller)
        else:
            caller.answer(self._answered(caller, request))

    def _answered(self, caller: _Caller, request: Request) -> Answer:
        busy = self._dumping is not None and self._dumping is not caller
        if request.do != "tell" and busy:
            assert self._dumping is not None
            return Answer(busy=self._dumping.pid)
        try:
            return self._done(caller, request)
        except CrckptError as error:
            return Answer(refused=error.message)

    def _done(self, caller: _Caller, request: Request) -> Answer:
        match request.do:
            case "begin":
                self._dumping = caller
                return Answer(began=self._tracker.begin())
            case "stage":
                self.discard()
                self._staged = request.directories
            case "frozen":
                self._tracker.frozen()
            case "committed":
                self._tracker.committed(request.name)
                self._over()
        return Answer(keeper=self._told_now())

    def _told_now(self) -> Keeper:
        dumping = self._dumping.pid if self._dumping else 0
        now = self._tracker
        return msgspec.structs.replace(self._told, base=now.base, why_full=now.why_full, dumping=dumping)

    def _gone(self, caller: _Caller) -> None:
        caller.close()
        if self._dumping is caller:
            self._over()

    def _over(self) -> None:
        self._dumping = None
        if self._staged and Path(self._staged[-1]) not in Path(self._tracker.base).parents:
            self.discard()

    def discard(self) -> None:
        """Remove what is staged. What cannot be removed is left to `crckpt gc`."""
        for directory in self._staged:
            with suppress(OSError):
                remove_tree(Path(directory), "rounds")
        self._staged = ()


def _allow_descriptors() -> None:
    """One is held of each process; what started us may have been content with few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _terminated() -> int:
    """A descriptor that can be read once a SIGTERM has come."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    return reading


def main(pid: int, criu: Path, descriptor: int) -> None:
    """Keep the tree below `pid`, or say at once why that cannot be."""
    _allow_descriptors()
    terminated = _terminated()
    first = _Caller(socket.socket(fileno=descriptor))
    root = proc.read_process(pid)
    if root is None:
        first.answer(Answer(refused=f"PID {pid} has ended"))
        return
    path = place_of_keeper(root)
    try:
        make_for(path)
    except OSError as error:
        first.answer(Answer(refused=f"the directory of its tracker cannot be used: {error}"))
        return
    choice = choose(root, criu)
    if choice.tracker is None:
        first.answer(Answer(refused=choice.why))
        return
    environment = dict(choice.tracker.environment(criu))
    told = Keeper(
        os.getpid(),
        pid,
        root.comm,
        choice.tracker.name,
        choice.why,
        str(criu),
        environment,
        identity=library.identity(criu),
    )
    os.umask(0o177)
    # One that was killed left its own.
    path.unlink(missing_ok=True)
    is_terminated = False
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            first.answer(Answer(keeper=told))
            service = _Service(choice.tracker, told)
            try:
                is_terminated = service.serve(os.pidfd_open(pid), terminated, listener, first)
            finally:
                service.discard()
    finally:
        if not is_terminated:
            path.unlink(missing_ok=True)
        choice.tracker.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
