"""The sockets of helpers: only root and a helper's own user can connect, and no other user's process is asked."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.helper.channel import Channel, HelperSilent
from crckpt.helper.kinds import HelperKind
from crckpt.helper.records import HelperRecord, find_records
from crckpt.host.disk.own_files import make_runtime_directory
from crckpt.host.socket_options import is_trusted

_TIME: Final = struct.Struct("@ll")  # struct timeval


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


def accept(listener: socket.socket) -> socket.socket | None:
    """Accept a connection; None if it is another user's, or has gone. Raises OSError without a free descriptor."""
    with suppress(ConnectionAbortedError):
        connection, _ = listener.accept()
        if is_trusted(connection):
            return connection
        connection.close()
    return None


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
    """Find the sockets of a kind, or those `of` the living tree with this root: each with a channel, which the caller
    closes, or why there is none; None if its helper was killed.

    What killed helpers left is removed once their tree has ended.
    """
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
