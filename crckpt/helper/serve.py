"""In a helper: wait for requests, connections, signals and other events, and answer one after the other."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec import Struct, field

from crckpt.helper.channel import Channel, HelperEnded, HelperOutdated, HelperSilent, close_all, listen
from crckpt.helper.kinds import HelperKind
from crckpt.host.opened import is_trusted

_MOST_PEERS: Final = 64
# How long a peer may take to read its answer.
_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.1

_Request = TypeVar("_Request")


_File: TypeAlias = int | socket.socket | Channel


class Waiting:
    """Files that are waited for, each with the function that is called with the events that have come."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, file: _File, ready: Callable[[int], object], events: int = selectors.EVENT_READ) -> None:
        """Call `ready` after these events."""
        if file in self._selector.get_map():
            self._selector.modify(file, events, ready)
        else:
            self._selector.register(file, events, ready)

    def forget(self, file: _File) -> None:
        """Wait for nothing of this file. May be called again."""
        with suppress(KeyError):
            self._selector.unregister(file)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for events, at most so long, and call what is called for them. Return whether there were any."""
        found = self._selector.select(seconds)
        for key, events in found:
            # What was called before may have closed it, and another file may have its number.
            now = self._selector.get_map().get(key.fd)
            if now is not None and now.fileobj is key.fileobj:
                key.data(events)
        return bool(found)

    def listen(self, path: Path, take: Callable[[socket.socket], object]) -> socket.socket:
        """Call `take` with each new connection of root and our user; return the listener. Raises OSError."""
        listener = listen(path)

        def ready(_events: int) -> None:
            try:
                connection, _ = listener.accept()
            except ConnectionAbortedError:
                return
            except OSError:
                # There are no free descriptors: the next one is accepted once there are.
                time.sleep(_PAUSE_S)
                return
            if is_trusted(connection):
                take(connection)
            else:
                connection.close()

        self.watch(listener, ready)
        return listener

    def close(self) -> None:
        """Wait for nothing any more."""
        self._selector.close()


class Server(Struct, Generic[_Request]):
    """Answers the peers of a helper: the process that started it, and those who connect.

    `take` is called with a peer, its request and the descriptors that came with it; `dropped` with a peer that has
    gone; `refuse` makes the answer to a request that this release does not know. `has_asked`: those of the peers that
    have asked something are never dropped to make room.
    """

    kind: HelperKind
    request: type[_Request]
    take: Callable[[Channel, _Request, list[int]], object]
    dropped: Callable[[Channel], object]
    refuse: Callable[[str], Struct]
    waiting: Waiting = field(default_factory=Waiting)
    has_asked: dict[Channel, bool] = {}

    def add(self, peer: Channel) -> None:
        """Take this peer's requests. If there are too many peers, drop the oldest that has asked nothing."""
        if len(self.has_asked) >= _MOST_PEERS:
            silent = next((each for each, has_asked in self.has_asked.items() if not has_asked), None)
            if silent is None:
                peer.close()
                return
            self._drop(silent)
        self.has_asked[peer] = False
        self.waiting.watch(peer, lambda _events: self._read(peer))

    def listen(self, path: Path) -> socket.socket:
        """Take the requests of those who connect to this socket. Raises OSError."""
        return self.waiting.listen(path, lambda connection: self.add(Channel(self.kind, connection)))

    def answer(self, peer: Channel, answer: Struct) -> None:
        """Answer a peer; drop one that has gone, or does not read."""
        try:
            peer.send(answer, within_s=_PATIENCE_S)
        except (HelperEnded, HelperSilent):
            self._drop(peer)

    def close(self) -> None:
        """Close all connections."""
        for peer in self.has_asked:
            peer.close()
        self.waiting.close()

    def _read(self, peer: Channel) -> None:
        try:
            request, descriptors = peer.receive_descriptors(self.request, 0)
        except HelperOutdated:
            self.answer(peer, self.refuse("unknown request: it comes from another version of crckpt"))
        except HelperSilent:
            return
        except HelperEnded:
            self._drop(peer)
        else:
            self.has_asked[peer] = True
            try:
                self.take(peer, request, descriptors)
            finally:
                close_all(descriptors)

    def _drop(self, peer: Channel) -> None:
        if self.has_asked.pop(peer, None) is not None:
            self.waiting.forget(peer)
            peer.close()
            self.dropped(peer)


def wake_on_signals(numbers: Iterable[signal.Signals], handle: Callable[[int], object] = lambda _number: None) -> int:
    """Call `handle` with each of these signals. Return a descriptor that is readable after each of them."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # After a handler that raises nothing, Python goes on waiting (PEP 475): only a readable descriptor ends that.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda arrived, _frame: handle(arrived))
    return reading
