"""Send what the logs of a tree have gained, and append it to those of the destination (`--send-files`)."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import KEEPS_RUNNING, DumpFailed, IntegrityError, PreflightRefused
from crckpt.host.disk.placed_files import Placement, find_permissions, read_owners
from crckpt.host.steps import step
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.migrate.transfer.send_files import opened
from crckpt.migrate.transfer.sent_files import (
    AT_ONCE,
    SentFile,
    SentTail,
    decode_tails,
    receive_contents,
    send_contents,
)
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Stored, Tails

_WHAT: Final = "sent-tail"
_AT_ONCE: Final = 1 << 20
_OF_AN_END: Final = 256 << 10


class SentLogs:
    """The logs of a tree, each with the number of bytes that the destination has of it."""

    def __init__(self, logs: Sequence[tuple[AskedFile, int]]) -> None:
        self._logs = [_Log(file, size) for file, size in logs]

    def send_gained(self, connection: Connection) -> None:
        """Send what they have gained, durably. Raises DumpFailed or PreflightRefused if one has changed."""
        tails = [(log, tail) for log in self._logs if (tail := log.describe()) is not None]
        for first in range(0, len(tails), AT_ONCE):
            _send(connection, tails[first : first + AT_ONCE])


class _Log:
    def __init__(self, file: AskedFile, start: int) -> None:
        self.file = file
        self.start = start
        self.is_compared = start == 0
        self._ends = ""

    def describe(self) -> SentTail | None:
        """Describe what it has gained; None if that is nothing."""
        file = self.file
        with opened(file) as descriptor:
            status = os.fstat(descriptor)
            start, end = self.start, status.st_size
            if end < start:
                raise _make_cut_error(file)
            known = self._ends or _read_ends(descriptor, start)
            before = "" if self.is_compared else _read_digest(descriptor, 0, start)
            digest = _read_digest(descriptor, start, end)
            mode = stat.S_IFREG | find_permissions(file.mode, descriptor)
            self._ends = _read_ends(descriptor, end)
            # Last: what was cut before any of these reads is found now, what is cut later is found the next time.
            if _read_ends(descriptor, start) != known:
                raise _make_cut_error(file)
        if end == start and self.is_compared:
            return None
        above = tuple(read_owners(Path(file.name)))
        sent = SentFile(file.path, mode, file.uid, file.gid, above, status.st_mtime_ns, end - self.start, digest)
        return SentTail(sent, self.start, before)


def _make_cut_error(file: AskedFile) -> DumpFailed:
    return DumpFailed(
        f"{file.name} was cut or rewritten during the move",
        state=KEEPS_RUNNING,
        hint="run the command again; do not rotate the log meanwhile",
    )


def _send(connection: Connection, tails: Sequence[tuple[_Log, SentTail]]) -> None:
    by_path = {tail.file.path: (log, tail) for log, tail in tails}

    def read(sent: SentFile) -> Generator[bytes]:
        log, tail = by_path[sent.path]
        with opened(log.file) as descriptor:
            yield from _read(descriptor, tail.start, tail.start + sent.size, connection.data_bytes)

    announced = Tails(messages.encode(tuple(tail for _, tail in tails)))
    send_contents(connection, announced, [tail.file for _, tail in tails], read)
    for log, tail in tails:
        log.start, log.is_compared = tail.start + tail.file.size, True


def receive_tails(connection: Connection, message: Tails) -> None:
    """Append what logs have gained, all or nothing. Raises PreflightRefused, IntegrityError, OSError."""
    tails = decode_tails(message.content)
    logs: list[tuple[SentTail, int]] = []
    files = [tail.file for tail in tails]
    with Placement() as placement:
        try:
            for tail in tails:
                logs.append((tail, _open_log(placement, tail)))
            missing = receive_contents(connection, files, lambda number: logs[number][1], "log")
            _finish(logs, is_whole=missing is None)
        except BaseException:
            for tail, descriptor in logs:
                with suppress(OSError):
                    step(f"{_WHAT}.truncate", descriptor)
                    os.ftruncate(descriptor, tail.start)
            raise
        finally:
            for _, descriptor in logs:
                os.close(descriptor)
    connection.send(Stored())


def _open_log(placement: Placement, tail: SentTail) -> int:
    """Open a log for appending if it is the same as the source's: owner, mode, and content before the tail."""
    file = tail.file
    path = Path(os.fsdecode(file.path))
    directory = placement.open_directory(path.parent, file.above, file.uid)
    found = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(found)
        # Whoever may write it on the source must be able to write this one, too.
        same = (file.mode, file.uid, file.gid, 1) == (status.st_mode, status.st_uid, status.st_gid, status.st_nlink)
        if not (stat.S_ISREG(status.st_mode) and same and status.st_size == tail.start):
            raise _differs(path, f"it has {status.st_size} bytes, another owner or mode, or several names")
        log = os.open(f"/proc/self/fd/{found}", os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)
    if tail.before and _read_digest(log, 0, tail.start) != tail.before:
        os.close(log)
        raise _differs(path, "its content differs")
    return log


def _differs(path: Path, why: str) -> PreflightRefused:
    return PreflightRefused(
        f"{path} is not the same log there: {why}", hint="remove it there, if nobody needs it; then it is sent whole"
    )


def _finish(logs: Sequence[tuple[SentTail, int]], *, is_whole: bool) -> None:
    for tail, descriptor in logs:
        if not is_whole or os.fstat(descriptor).st_size != tail.start + tail.file.size:
            raise IntegrityError(f"{os.fsdecode(tail.file.path)} was changed while it was received")
        # Else the restore would report that it was written after the checkpoint.
        os.utime(descriptor, ns=(tail.file.modified, tail.file.modified))
        step(f"{_WHAT}.sync", descriptor)
        os.fsync(descriptor)


def _read(descriptor: int, start: int, end: int, at_once: int = _AT_ONCE) -> Iterator[bytes]:
    while start < end:
        content = os.pread(descriptor, min(at_once, end - start), start)
        if not content:
            raise DumpFailed("a log has become shorter while it was read", hint="run the command again")
        yield content
        start += len(content)


def _read_ends(descriptor: int, size: int) -> str:
    """The digest of the first and last bytes before `size`. Logs are large: in the middle none changes alone."""
    first, last = min(size, _OF_AN_END), max(size - _OF_AN_END, 0)
    return _read_digest(descriptor, 0, first) + _read_digest(descriptor, last, size)


def _read_digest(descriptor: int, start: int, end: int) -> str:
    found = hashlib.sha256()
    for content in _read(descriptor, start, end):
        found.update(content)
    return found.hexdigest()
