"""Send files that the destination lacks, and what the logs of the tree gain, and receive them (`--send-files`).

They travel as packs do: a message names them, the destination asks for them by their digests, and then comes the
content of each, in their order, on one channel. Nothing has a name at the destination before all is there and verified.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from crckpt.causes import mebibytes
from crckpt.errors import KEEPS_RUNNING, DumpFailed, HostCannot, IntegrityError, PreflightRefused
from crckpt.host.disk import placed_files, space
from crckpt.host.disk.checked_files import open_regular, read_digest
from crckpt.host.disk.path_trust import find_group_name, find_user_name
from crckpt.host.disk.placed_files import Ownership, Placement, find_permissions, read_owners
from crckpt.host.steps import step
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.migrate.transfer import sent_files
from crckpt.migrate.transfer.sent_files import AT_ONCE, SentFile, SentTail, receive_contents, send_contents
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Files, Stored, Tails
from crckpt.ops.context import Progress, ignore_progress

_NOTHING: Final = hashlib.sha256().hexdigest()
_TAIL: Final = "sent-tail"
_READ_AT_ONCE: Final = 1 << 20
_OF_AN_END: Final = 256 << 10


def send_files(connection: Connection, files: Sequence[AskedFile], progress: Progress = ignore_progress) -> None:
    """Send files that `find_sendable` allows: then all are there. Raises DumpFailed if one has changed, and OSError."""
    done, total = 0, sum(file.size for file in files)

    def add(sent: int) -> None:
        nonlocal done
        done += sent
        progress(min(done, total), total)

    for first in range(0, len(files), AT_ONCE):
        _send(connection, files[first : first + AT_ONCE], add)


def receive_files(connection: Connection, message: Files) -> None:
    """Put files where they belong, all or none. Raises PreflightRefused, HostCannot, IntegrityError, OSError."""
    files = sent_files.decode_files(message.content)
    for file in files:
        here = (("user", find_user_name(file.uid), file.user), ("group", find_group_name(file.gid), file.group))
        for kind, name, there in here:
            # It may be what only its owner may read.
            if name not in ("", there):
                raise PreflightRefused(
                    f"{os.fsdecode(file.path)} belongs to the {kind} {there or 'without a name'} on the source, whose "
                    f"number is that of {name} here",
                    hint="copy it there yourself: rsync -t",
                )
    descriptors: list[int] = []
    with Placement() as placement:
        above = [(file, _open_above(placement, file)) for file in files]
        regular = [(file, directory) for file, directory in above if not file.is_directory]

        def open_file(number: int) -> int:
            file, directory = regular[number]
            if file.size > space.free_disk(directory):
                raise HostCannot(
                    f"{os.fsdecode(file.path)} has {mebibytes(file.size)}, more than its disk has free",
                    hint="free space there",
                )
            descriptors.append(placement.open_unnamed(directory))
            return descriptors[-1]

        try:
            if (missing := receive_contents(connection, [file for file, _ in regular], open_file, "file")) is not None:
                raise IntegrityError(f"{os.fsdecode(missing.path)} was not sent")
            for (file, _), descriptor in zip(regular, descriptors, strict=True):
                placed_files.finish(descriptor, Ownership(file.mode, file.uid, file.gid), file.modified)
            for (file, directory), descriptor in zip(regular, descriptors, strict=True):
                placement.put(directory, os.fsdecode(file.path.rpartition(b"/")[2]), descriptor)
        finally:
            # Those without a name are gone.
            for descriptor in descriptors:
                os.close(descriptor)
        placement.remove_temporary_names()
        placement.sync_directories()
    connection.send(Stored())


def _describe(file: AskedFile) -> SentFile:
    """Describe a file as it is now, with its digest. Raises DumpFailed if it is another one than the tree uses."""
    path = Path(file.name)
    above = tuple(read_owners(path))
    user, group = find_user_name(file.uid), find_group_name(file.gid)
    if stat.S_ISDIR(file.mode):
        return SentFile(file.path, file.mode, file.uid, file.gid, above, user=user, group=group)
    with opened(file) as descriptor:
        # A log grows: all of it follows as what it has gained.
        digest = _NOTHING if file.is_log else read_digest(descriptor, file.size)
        mode = stat.S_IFREG | find_permissions(file.mode, descriptor)
    if not digest:
        raise _make_change_error(file)
    return SentFile(
        file.path, mode, file.uid, file.gid, above, file.modified, file.size, digest, user=user, group=group
    )


def _send(connection: Connection, asked: Sequence[AskedFile], progress: Callable[[int], None]) -> None:
    asked = [replace(file, size=0) if file.is_log else file for file in asked]
    files = tuple(_describe(file) for file in asked)
    questions = {file.path: file for file in asked}

    def read(sent: SentFile) -> Generator[bytes]:
        with opened(file := questions[sent.path]) as descriptor:
            left = file.size
            while left:
                content = os.read(descriptor, min(left, connection.data_bytes))
                if not content:
                    raise _make_change_error(file)
                yield content
                left -= len(content)
                progress(len(content))

    send_contents(connection, Files(messages.encode(files)), [file for file in files if not file.is_directory], read)


@contextmanager
def opened(file: AskedFile) -> Iterator[int]:
    """Open the tree's file by its name; raises DumpFailed for another one: a link may lead to what root may read."""
    try:
        descriptor, _ = open_regular(file.name)
    except FileNotFoundError as error:
        raise _make_change_error(file, "was removed or renamed") from error
    if descriptor is None:
        raise _make_change_error(file)
    try:
        found = os.fstat(descriptor)
        # The user chooses the number of an inode (FUSE, tmpfs): only with its file system it names one file.
        if (found.st_dev, found.st_ino) != (file.device, file.inode):
            raise _make_change_error(file, "was replaced")
        if (found.st_mode, found.st_uid, found.st_gid) != (file.mode, file.uid, file.gid):
            raise _make_change_error(file)
        yield descriptor
    finally:
        os.close(descriptor)


def _make_change_error(file: AskedFile, change: str = "has changed") -> DumpFailed:
    meanwhile = "; do not rotate the log meanwhile" if file.is_log else ""
    return DumpFailed(
        f"{file.name} {change} since the check", state=KEEPS_RUNNING, hint=f"run the command again{meanwhile}"
    )


def _open_above(placement: Placement, file: SentFile) -> int:
    path = Path(os.fsdecode(file.path))
    if file.is_directory:
        return placement.open_directory(path, [*file.above, Ownership(file.mode, file.uid, file.gid)], file.uid)
    return placement.open_directory(path.parent, file.above, file.uid)


class SentLogs:
    """The logs of a tree, each with the number of bytes that the destination has of it."""

    def __init__(self, logs: Sequence[tuple[AskedFile, int]]) -> None:
        self._logs = [_Log(file, size) for file, size in logs]

    def send_gained(self, connection: Connection) -> None:
        """Send what they have gained, durably. Raises DumpFailed or PreflightRefused if one has changed."""
        tails = [(log, tail) for log in self._logs if (tail := log.describe()) is not None]
        for first in range(0, len(tails), AT_ONCE):
            _send_tails(connection, tails[first : first + AT_ONCE])


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


def _send_tails(connection: Connection, tails: Sequence[tuple[_Log, SentTail]]) -> None:
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
    tails = sent_files.decode_tails(message.content)
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
                    step(f"{_TAIL}.truncate", descriptor)
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
        step(f"{_TAIL}.sync", descriptor)
        os.fsync(descriptor)


def _read(descriptor: int, start: int, end: int, at_once: int = _READ_AT_ONCE) -> Iterator[bytes]:
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
