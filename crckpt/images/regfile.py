"""Files with a path in `files.img` (images/regfile.proto). Deleted ones: `remap-fpath.img` and `ghost-file-N.img`."""

from __future__ import annotations

import os
import stat
from typing import Annotated, ClassVar, Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.decode import Field, decode
from crckpt.images.framing import read_image, read_messages
from crckpt.images.wire import Message, decode_signed

GHOST: Final = "ghost"
LINKED: Final = "linked"
PROCESS: Final = "process"

# remap_type (images/remap-file-path.proto).
_REMAP_KINDS: Final = {0: LINKED, 1: GHOST, 2: PROCESS}
_REMAP_TYPE: Final = 3
_OLD_GHOST_BIT: Final = 1 << 31


def _read_remap_kind(message: Message) -> str:
    # Old CRIU has no type, and marks a ghost in the top bit of the id (criu/files-reg.c:733).
    if _REMAP_TYPE not in message:
        return GHOST if message.required(2) & _OLD_GHOST_BIT else LINKED
    return _REMAP_KINDS.get(message.uint(_REMAP_TYPE), "unknown")


class Remap(Struct, frozen=True):
    """The place where CRIU finds a file whose path is gone (images/remap-file-path.proto). The `kind` is one of:

    - GHOST: no name is left; the content of `size` bytes is in `ghost-file-<target, hexadecimal>.img`
    - LINKED: it has other names, and CRIU added `path` for the restore (`target` is the file id of that)
    - PROCESS: a file in the /proc directory of a dead process with the PID `target`
    """

    kind: Annotated[str, Field(convert=_read_remap_kind)]
    target: Annotated[
        int, Field(convert=lambda remap: remap.required(2) & ~(0 if _REMAP_TYPE in remap else _OLD_GHOST_BIT))
    ]
    path: str = ""
    size: int | None = None


def _read_build_id(words: tuple[int, ...]) -> str:
    # CRIU copies the bytes into 32-bit words and fills the last one with zeros (criu/files-reg.c:1719).
    return b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in words).hex()


class RegularFile(Struct, frozen=True):
    """A file with a path: regular, directory, device, named pipe.

    A restore by CRIU 4.2 checks neither content, owner, inode nor times, and nothing of a file that `--inherit-fd`
    gives under its path (criu/files-reg.c:2200).

    - `flags`: of open(2); 0 for mappings, executables and a process's directories
    - `mode`: st_mode
    - `size`: None if CRIU does not check it
    - `build_id`: hexadecimal, empty if there is none
    - `external`: the caller of a restore provides the file
    """

    kind: ClassVar[str] = "file"

    id: Annotated[int, 1]
    # A restore opens each file by its path (criu/files-reg.c:2351), and fails if it is missing.
    path: Annotated[str, 6]
    # A mapping and the executable have entries of their own, with flags 0 (criu/cr-dump.c:317, 434): so the size of a
    # mapped file is always checked, however it was opened.
    flags: Annotated[int, Field(2, default=0)]
    pos: Annotated[int, Field(3, default=0, convert=decode_signed)]
    # Another size ends the restore (criu/files-reg.c:2174); no option prevents that. Not saved for files that are
    # append-only or not regular (1456, 1827).
    size: Annotated[int | None, 8]
    # Compared for files of all types (criu/files-reg.c:2284); `--skip-file-rwx-check` leaves out the rwx bits only.
    mode: Annotated[int | None, 10]
    # Of ELF files whose size is saved (criu/files-reg.c:1693). Compared only if the file has one at the restore, too
    # (2137).
    build_id: Annotated[str, Field(11, wire=tuple[int, ...], convert=_read_build_id)]
    external: Annotated[bool, 9]
    remap: Remap | None = None

    @property
    def title(self) -> str:
        """The path, marked if the file was deleted."""
        return f"{self.path} (deleted)" if self.is_deleted else self.path

    @property
    def is_deleted(self) -> bool:
        """Whether its path was gone at the dump."""
        return self.remap is not None

    @property
    def is_ghost(self) -> bool:
        """Whether its content is in the images, because it had no name left."""
        return self.remap is not None and self.remap.kind == GHOST

    @property
    def is_removed_directory(self) -> bool:
        """Whether it is a directory that was removed: a restore makes it again, empty."""
        return self.is_ghost and stat.S_ISDIR(self.mode or 0)

    @property
    def is_writable(self) -> bool:
        """Whether it was opened for writing."""
        return self.flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def is_append_only(self) -> bool:
        """Whether all writes go to its end: then CRIU does not check its size."""
        # Such a log may have grown (criu/files-reg.c:1456).
        return self.flags & os.O_ACCMODE == os.O_WRONLY and bool(self.flags & os.O_APPEND)


class Ghost(Struct, frozen=True):
    """The image of a deleted file: owner, mode, size in bytes with holes, bytes that are `stored`, and its inode."""

    uid: int
    gid: int
    mode: int
    size: int
    stored: int
    inode: int | None = None


def read_remaps(data: bytes, name: str = "remap-fpath.img") -> dict[int, Remap]:
    """Decode the remaps, by the id of the file whose path is gone, without `path` and `size`. Raises IntegrityError."""
    return {message.required(1): decode(Remap, message) for message in read_messages(data, name, magics.REMAP_FPATH)}


def ghost_image(target: int) -> str:
    """Return the name of the image with a ghost's content."""
    return f"ghost-file-{target:x}.img"


def read_ghost(data: bytes, name: str = "ghost-file.img") -> Ghost:
    """Decode the image. Raises IntegrityError if it is damaged."""
    image = read_image(data, name, magics.GHOST_FILE)
    message = Message(image.records[0].payload if image.records else b"", name)
    uid, gid, mode = (message.required(number) for number in range(1, 4))
    stored = sum(len(record.extra) for record in image.records)
    # CRIU saves the size only of a file that it stores in parts (criu/files-reg.c:933).
    return Ghost(uid, gid, mode, message.uint(10, default=stored), stored, message.uint(5) if 5 in message else None)
