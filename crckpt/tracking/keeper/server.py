"""A keeper: the small process that holds a tree's tracker from one dump to the next, and ends with the tree.

Run as `python -m crckpt.tracking.keeper.server PID CRIU DESCRIPTOR`. It answers the peers that connect to its socket,
and the one that holds the other end of DESCRIPTOR. Only root and the keeper's own user are answered.

The connection that asks to begin is a dump until it asks `committed` or closes; there is one at a time. The keeper ends
with the tree, on `end` and on SIGTERM, but only after a dump that is going on. A killed keeper leaves nothing in the
tree: every page counts as written then.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from crckpt.errors import CrckptError, error_text
from crckpt.host import proc
from crckpt.host.disk.files import remove_tree
from crckpt.host.disk.runtime_directory import make_runtime_directory
from crckpt.host.peers import is_trusted, peer_pid
from crckpt.tracking.choose_tracker import choose_tracker
from crckpt.tracking.dump_basis import RoundBase
from crckpt.tracking.keeper.protocol import (
    Answer,
    Keeper,
    KeeperRequest,
    base_name,
    begin_answer,
    decode_request,
    encode,
    read_committed_base,
)
from crckpt.tracking.keeper.sockets import keeper_socket
from crckpt.tracking.preload import library
from crckpt.tracking.tracker import Tracker

# Bytes of a request.
_LONGEST: Final = 64 << 10
_MOST_CALLERS: Final = 64
# How long a caller may take to read its answer.
_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.1


class _Caller:
    """A connection. `pid` is the process at its other end; `has_asked` once it sent a request that was decoded."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # One caller that does not read must not stop the keeper.
        connection.settimeout(_PATIENCE_S)
        self._received = bytearray()
        self.pid = peer_pid(connection)
        self.has_asked = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def read_requests(self) -> tuple[KeeperRequest, ...] | None:
        """Return the requests that have come in full, without waiting; None if the peer has gone, or sends too much."""
        try:
            received = self._connection.recv(_LONGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        except OSError:
            return None
        *lines, rest = (bytes(self._received) + received).split(b"\n")
        self._received[:] = rest
        if not received or len(rest) > _LONGEST:
            return None
        requests = tuple(request for line in lines if (request := self._decode(line)))
        self.has_asked |= bool(requests)
        return requests

    def answer(self, answer: Answer) -> None:
        try:
            self._connection.sendall(encode(answer))
        except OSError:
            # The peer has gone, or does not read: the next read finds the connection closed.
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _decode(self, line: bytes) -> KeeperRequest | None:
        request = decode_request(line)
        if request is None:
            self.answer(Answer(refused="unknown request: it comes from another version of crckpt"))
        return request


class _Service:
    """Answers requests until the tree ends or the keeper is to end, and until no dump is going on."""

    def __init__(
        self, tracker: Tracker, keeper: Keeper, make_caller: Callable[[socket.socket], _Caller] = _Caller
    ) -> None:
        self._tracker = tracker
        self._keeper = keeper
        self._make_caller = make_caller
        self._dumping: _Caller | None = None
        self._staged: tuple[str, ...] = ()
        self._ending = False
        self._enders: list[_Caller] = []

    def serve(self, root: int, terminated: int, listener: socket.socket, first: _Caller) -> bool:
        """Serve until the end. Return whether a SIGTERM caused it: then `terminated` is readable. `root` is a pidfd."""
        is_terminated = False
        with selectors.DefaultSelector() as waiting:
            waiting.register(root, selectors.EVENT_READ)
            waiting.register(terminated, selectors.EVENT_READ)
            waiting.register(listener, selectors.EVENT_READ)
            waiting.register(first, selectors.EVENT_READ)
            # The images of a dump that is going on may need the rounds that this keeper removes when it ends.
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
                    # It may have been closed to make room since `select` returned it.
                    requests = caller.read_requests() if caller.fileno() >= 0 else ()
                    if requests is None:
                        waiting.unregister(caller)
                        self._drop(caller)
                        continue
                    for request in requests:
                        self._ask(caller, request)
        return is_terminated

    def _accept(self, listener: socket.socket, waiting: selectors.BaseSelector) -> None:
        """Accept a connection. If there are too many, close the oldest that has asked nothing."""
        try:
            connection, _ = listener.accept()
        except OSError:
            # The peer has gone again, or there are no free descriptors: the next one is accepted once there are.
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
        waiting.register(self._make_caller(connection), selectors.EVENT_READ)

    def _ask(self, caller: _Caller, request: KeeperRequest) -> None:
        if request.do == "end":
            # The answer is that the connection closes when this process ends, after everything else.
            self._ending = True
            self._enders.append(caller)
        else:
            caller.answer(self._answer(caller, request))

    def _answer(self, caller: _Caller, request: KeeperRequest) -> Answer:
        busy = self._dumping is not None and self._dumping is not caller
        if request.do != "tell" and busy:
            assert self._dumping is not None
            return Answer(busy=self._dumping.pid)
        try:
            return self._perform(caller, request)
        except CrckptError as error:
            return Answer(refused=error.message)

    def _perform(self, caller: _Caller, request: KeeperRequest) -> Answer:
        match request.do:
            case "begin":
                basis = self._tracker.begin()
                # Only now: no dump is going on if that failed.
                self._dumping = caller
                return begin_answer(basis)
            case "stage":
                self.discard_rounds()
                self._staged = request.directories
            case "frozen":
                self._tracker.check_freeze()
            case "committed":
                self._tracker.commit(read_committed_base(request))
                self._finish_dump()
        return Answer(keeper=self._describe())

    def _describe(self) -> Keeper:
        dumping = self._dumping.pid if self._dumping else 0
        tracker = self._tracker
        return replace(self._keeper, base=base_name(tracker.base), why_full=tracker.why_full, dumping=dumping)

    def _drop(self, caller: _Caller) -> None:
        caller.close()
        if self._dumping is caller:
            self._finish_dump()

    def _finish_dump(self) -> None:
        self._dumping = None
        base = self._tracker.base
        in_use = base.directory.parents if isinstance(base, RoundBase) else ()
        if self._staged and Path(self._staged[-1]) not in in_use:
            self.discard_rounds()

    def discard_rounds(self) -> None:
        """Remove the rounds. Those that cannot be removed are left to `crckpt gc`."""
        for directory in self._staged:
            with suppress(OSError):
                remove_tree(Path(directory), "rounds")
        self._staged = ()


def _allow_descriptors() -> None:
    """Raise the limit of descriptors to the hard limit."""
    # The keeper holds one of each process, and inherits a limit that may be low.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _watch_for_sigterm() -> int:
    """Return a descriptor that is readable once a SIGTERM has come."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # After a handler that raises nothing, Python goes on waiting (PEP 475): only a readable descriptor ends that.
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    return reading


def main(pid: int, criu: Path, descriptor: int) -> None:
    """Keep the tracker of the tree below `pid`, or answer at once why that cannot be."""
    _allow_descriptors()
    terminated = _watch_for_sigterm()
    first = _Caller(socket.socket(fileno=descriptor))
    root = proc.read_process(pid)
    if root is None:
        first.answer(Answer(refused=f"PID {pid} has ended"))
        return
    path = keeper_socket(root)
    try:
        make_runtime_directory(path)
    except OSError as error:
        first.answer(Answer(refused=f"the directory of its tracker is unusable: {error_text(error)}"))
        return
    choice = choose_tracker(root, criu)
    if choice.tracker is None:
        first.answer(Answer(untracked=choice.why))
        return
    environment = dict(choice.tracker.environment(criu))
    keeper = Keeper(
        os.getpid(),
        pid,
        root.comm,
        choice.tracker.name,
        choice.why,
        str(criu),
        environment,
        identity=library.identity(criu),
    )
    # For the socket: to connect takes write permission on it (unix(7)).
    os.umask(0o177)
    # A keeper that was killed left its socket.
    path.unlink(missing_ok=True)
    is_terminated = False
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            first.answer(Answer(keeper=keeper))
            service = _Service(choice.tracker, keeper)
            try:
                # A pidfd becomes readable when the process ends (pidfd_open(2)).
                is_terminated = service.serve(os.pidfd_open(pid), terminated, listener, first)
            finally:
                service.discard_rounds()
    finally:
        # After a SIGTERM the socket stays, as if the keeper was killed: so the next dump can say why it is full.
        if not is_terminated:
            path.unlink(missing_ok=True)
        choice.tracker.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
