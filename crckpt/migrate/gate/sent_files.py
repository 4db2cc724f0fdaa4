"""Files that a move sends (`--send-files`), as they travel, and which may be sent. Pure.

Only what the tree does not write is sent: regular files that it reads, maps or runs; and its working directories,
empty. Logs are sent empty: `send_tails` sends what they have gained since then, which is all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from crckpt.causes import Finding, cause
from crckpt.errors import IntegrityError
from crckpt.migrate.gate.questions import AskedFile, FilePath, Identifier, Nanoseconds, Questions, Text
from crckpt.model import MEBIBYTE, Count

AT_ONCE: Final = 256
"""Files that are sent together: each is open at the destination until all are there."""

_MOST_BYTES: Final = 16 * MEBIBYTE
_SPECIAL: Final = 0o7000  # set-user-id, set-group-id, sticky
_MOST_PARTS: Final = 2048
# What root has put there acts as soon as it exists (cron, systemd, ld.so.preload), and a user can open most of it.
_OF_THE_HOST: Final = (b"/etc/", b"/run/", b"/boot/", b"/lib/systemd/", b"/usr/lib/systemd/")


class SentDirectory(Struct, frozen=True):
    """Permissions and owner of a directory above a file, for the case that it is missing."""

    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    uid: Identifier
    gid: Identifier


class SentFile(Struct, frozen=True):
    """A file or directory that is sent. `above`: the directories of its path, from the one in the root on.

    `user` and `group`: the names of its owner at the source; empty if there are none.
    """

    path: FilePath
    mode: Identifier
    uid: Identifier
    gid: Identifier
    above: Annotated[tuple[SentDirectory, ...], Meta(max_length=_MOST_PARTS)]
    modified: Nanoseconds = 0
    size: Count = 0
    digest: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""
    user: Text = ""
    group: Text = ""

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


SentFiles = Annotated[tuple[SentFile, ...], Meta(max_length=AT_ONCE)]


def encode_files(files: tuple[SentFile, ...]) -> bytes:
    """Encode files, without their content."""
    return msgspec.msgpack.encode(files)


def decode_files(content: bytes) -> tuple[SentFile, ...]:
    """Decode files of another host. Raises IntegrityError."""
    if len(content) > _MOST_BYTES:
        raise IntegrityError(f"the list of sent files has {len(content)} bytes; at most {_MOST_BYTES} are allowed")
    try:
        files: tuple[SentFile, ...] = msgspec.msgpack.decode(content, type=SentFiles)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"the list of sent files cannot be read: {error}") from error
    for file in files:
        check_sent_file(file)
    return files


def check_sent_file(file: SentFile) -> None:
    """Raise IntegrityError unless it may be sent, and its path is absolute and plain."""
    parts = file.path.split(b"/")
    is_plain = parts[0] == b"" and len(parts) > 1 and not {b"", b".", b".."} & set(parts[1:])
    if not is_plain or b"\0" in file.path or len(file.above) != len(parts) - 2:
        raise IntegrityError("the list of sent files has a path that is not absolute, or not plain")
    is_regular = stat.S_ISREG(file.mode) and not file.mode & _SPECIAL and file.digest
    if not (is_regular or (file.is_directory and not file.size)):
        raise IntegrityError("the list of sent files has a file that may not be sent")


def find_sendable(
    questions: Questions, lacking: Iterable[AskedFile]
) -> tuple[tuple[AskedFile, ...], tuple[Finding, ...]]:
    """Find which of the lacking files may be sent, and say why the others may not."""
    directories = {process.cwd for process in questions.processes}
    sendable, findings = [], []
    for file in lacking:
        why = _find_refusal(file, is_working_directory=file.id in directories)
        if why:
            findings.append(cause("file-unsendable").finding(path=file.name, why=why))
        else:
            sendable.append(file)
    return tuple(sendable), tuple(findings)


def _find_refusal(file: AskedFile, *, is_working_directory: bool) -> str:
    """Say why a file may not be sent; empty if it may."""
    if file.shared_by:
        return f"it is on a network file system ({file.shared_by}), which the other host must mount"
    if stat.S_ISDIR(file.mode):
        return "" if is_working_directory else "the program has the directory open, and may read what is in it"
    if not stat.S_ISREG(file.mode):
        return "it is not a regular file"
    if file.is_written and not file.is_log:
        return "the program writes to it"
    if file.flags & os.O_PATH:
        # For this it needed no right to read it.
        return "the program has not opened it to read it (O_PATH)"
    if file.mode & _SPECIAL:
        return "it gives its user's rights to those who run it (set-user-id)"
    if not file.uid and file.path.startswith(_OF_THE_HOST):
        return "it configures the host, so only you can decide whether the other host needs it"
    return "it is made by the kernel" if file.path.startswith((b"/proc/", b"/sys/", b"/dev/")) else ""
