"""Send files that the destination lacks, and receive them (`--send-files`).

They travel as packs do: a message names them, the destination asks for them by their digests, and then comes the
content of each, in their order, on one channel. Nothing has a name at the destination before all is there and verified.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from crckpt.causes import mebibytes
from crckpt.errors import KEEPS_RUNNING, DumpFailed, HostCannot, IntegrityError, PreflightRefused
from crckpt.host.disk import placed_files, space
from crckpt.host.disk.checked_files import open_regular
from crckpt.host.disk.digests import read_digest
from crckpt.host.disk.path_trust import find_group_name, find_user_name
from crckpt.host.disk.placed_files import Ownership, Placement, find_permissions, read_owners
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.migrate.transfer.sent_files import AT_ONCE, SentFile, decode_files, receive_contents, send_contents
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Files, Stored
from crckpt.ops.context import Progress, ignore_progress

_NOTHING: Final = hashlib.sha256().hexdigest()


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
    files = decode_files(message.content)
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
