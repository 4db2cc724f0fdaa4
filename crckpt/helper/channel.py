"""The connection between a helper and those who ask it: typed messages in JSON, each perhaps with descriptors.

SOCK_SEQPACKET keeps the borders of messages. A message too large for a packet is sent as a file in memory. A helper may
have been started by another release of crckpt, so messages keep their words and keys; unknown keys are ignored. Only
root and a helper's own user can connect to its socket, and no other user's process is asked.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.helper.kinds import HelperKind, HelperRecord, find_records
from crckpt.host.disk.own_files import make_runtime_directory
from crckpt.host.opened import is_trusted, peer_pid
from crckpt.host.process.signals import send_signal_if

MOST_DESCRIPTORS: Final = 250
"""Descriptors with a message at most (SCM_MAX_FD, unix(7), is 253)."""

_PACKET: Final = 64 << 10
# No JSON begins so: the message is in the first descriptor.
_IN_FILE: Final = b"\0"
_MOST_BYTES: Final = 1 << 30
_TIME: Final = struct.Struct("@ll")  # struct timeval
_OUTDATED: Final = "belongs to another version of crckpt"

Message = TypeVar("Message")


class HelperEnded(HostCannot):
    """The helper has ended, or was killed."""


class HelperSilent(HostCannot):
    """The helper runs, but takes too long."""


class HelperOutdated(HelperSilent):
    """What the helper sends cannot be decoded: it belongs to another release."""


class Channel:
    """One end of a connection. `pid` is the process at the other end; of a socket pair, who made it."""

    def __init__(self, kind: HelperKind, connection: socket.socket, pid: int = 0) -> None:
        self.kind = kind
        self.connection = connection
        self.pid = pid or peer_pid(connection)

    def fileno(self) -> int:
        """Return the descriptor; -1 once it is closed."""
        return self.connection.fileno()

    def close(self) -> None:
        """Close this end. The process at the other end stays. May be called again."""
        self.connection.close()

    def send(self, message: Struct, descriptors: Sequence[int] = (), within_s: float | None = None) -> None:
        """Send a message, at once or once there is room. Raises HelperEnded, HelperSilent."""
        # Keepers of releases up to 0.4 speak lines.
        if self.connection.type != socket.SOCK_SEQPACKET:
            raise self._silent_error(HelperOutdated, _OUTDATED)
        self.connection.settimeout(within_s)
        data = msgspec.json.encode(message)
        file = -1
        try:
            if len(data) > _PACKET:
                file = os.memfd_create("crckpt", os.MFD_CLOEXEC)
                with os.fdopen(os.dup(file), "wb") as writing:
                    writing.write(data)
                data, descriptors = _IN_FILE, (file, *descriptors)
            socket.send_fds(self.connection, [data], descriptors)
        except (TimeoutError, BlockingIOError):
            raise self._silent_error(HelperSilent, "does not answer") from None
        except OSError:
            raise self._ended_error() from None
        finally:
            if file >= 0:
                os.close(file)

    def receive(self, message: type[Message], within_s: float | None = None) -> Message:
        """Receive a message of this type. Raises HelperEnded, HelperSilent."""
        received, descriptors = self.receive_descriptors(message, within_s)
        close_all(descriptors)
        return received

    def receive_descriptors(self, message: type[Message], within_s: float | None = None) -> tuple[Message, list[int]]:
        """Receive a message with its descriptors, which the caller closes. Raises as `receive`."""
        self.connection.settimeout(within_s)
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self.connection, _PACKET, MOST_DESCRIPTORS + 1, socket.MSG_CMSG_CLOEXEC
            )
        except (TimeoutError, BlockingIOError):
            raise self._silent_error(HelperSilent, "does not answer") from None
        except OSError:
            raise self._ended_error() from None
        if not data:
            raise self._ended_error()
        try:
            if data == _IN_FILE and descriptors:
                file = descriptors.pop(0)
                try:
                    data = _load(file)
                finally:
                    os.close(file)
            return msgspec.json.decode(data, type=message), descriptors
        except (msgspec.MsgspecError, RecursionError, OSError):
            close_all(descriptors)
            raise self._silent_error(HelperOutdated, _OUTDATED) from None

    def ask(self, request: Struct, answer: type[Message], within_s: float | None = None) -> Message:
        """Send a request and return its answer. Raises HelperEnded, HelperSilent."""
        self.send(request, within_s=within_s)
        return self.receive(answer, within_s)

    def has_ended(self) -> bool:
        """Return whether the other end was closed, and nothing is left to receive."""
        # With a time limit, Python would wait for it.
        self.connection.setblocking(False)
        with suppress(BlockingIOError):
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        return False

    def terminate(self) -> None:
        """SIGTERM the process at the other end, unless it has closed that: then another one may have its PID."""
        send_signal_if(self.pid, signal.SIGTERM, lambda: not self.has_ended())

    def _ended_error(self) -> HelperEnded:
        return HelperEnded(f"{self.kind.title} has ended", hint=self.kind.killed)

    def _silent_error(self, error: type[HelperSilent], what: str) -> HelperSilent:
        remedy = self.kind.remedy.format(kill=f"kill -KILL {self.pid}")
        return error(f"{self.kind.title} (process {self.pid}) {what}", hint=remedy)


def open_control(kind: HelperKind, number: str) -> Channel:
    """In a helper: open the channel to the process that started it, whose number is the helper's first argument."""
    return Channel(kind, socket.socket(fileno=int(number)))


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)


def _load(file: int) -> bytes:
    size = os.fstat(file).st_size
    if size > _MOST_BYTES:
        raise OSError("the message is too large")
    with os.fdopen(os.dup(file), "rb") as reading:
        reading.seek(0)
        return reading.read(size)


def listen(path: Path) -> socket.socket:
    """Listen on this socket, in place of one that a killed helper has left. Raises OSError."""
    make_runtime_directory(path)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # To connect takes write permission on it (unix(7)).
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def connect(kind: HelperKind, path: Path, within_s: float) -> Channel | None:
    """Connect to the helper at this socket; None if it has ended. Raises HelperSilent if it does not answer."""
    connection = _connect(kind, path, within_s, socket.SOCK_SEQPACKET)
    if connection is None or is_trusted(connection):
        return Channel(kind, connection) if connection is not None else None
    connection.close()
    return None


def _connect(kind: HelperKind, path: Path, within_s: float, form: socket.SocketKind) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, form)
    # The queue of a helper that is stopped fills with those who have given up, and then the kernel lets us wait.
    patience = _TIME.pack(*divmod(int(within_s * 1_000_000), 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        if isinstance(error, BlockingIOError):
            hint = kind.remedy.format(kill=f"fuser -k {path} (package psmisc)")
            root = path.name.partition("-")[0]
            raise HelperSilent(f"the {kind.name} of PID {root} does not answer", hint=hint) from None
        # Keepers of releases up to 0.4: `Channel` says so.
        if error.errno == errno.EPROTOTYPE and form != socket.SOCK_STREAM:
            return _connect(kind, path, within_s, socket.SOCK_STREAM)
        return None
    return connection


def find_helpers(
    kind: HelperKind, within_s: float, of: int | None = None
) -> Iterator[tuple[HelperRecord, Channel | HelperSilent | None]]:
    """Find the sockets of a kind, or `of` a tree's root: each with a channel, why there is none, or None (killed)."""
    for record in find_records(kind):
        if not record.path.is_socket() or (of is not None and not (record.root.pid == of and record.root.keeps_pid)):
            continue
        try:
            channel = connect(kind, record.path, within_s)
        except HelperSilent as error:
            yield record, error
            continue
        if channel is None and not record.root.keeps_pid:
            record.path.unlink(missing_ok=True)
        else:
            yield record, channel
