"""Files with a path: what an open or mapped one was when it was dumped (images/regfile.proto), and deleted ones.

What CRIU checks at restore, and what it does not (lines are those of CRIU 4.2):

- It opens each file by its path as the dump saw it (criu/files-reg.c:2351); a file that is missing ends the restore.
- Size: recorded for regular files (files-reg.c:1827) and compared (2174); a difference ends the restore, there is no
  option against it. Exempt are files opened O_WRONLY with O_APPEND (1456-1463): no size is recorded, so a log that
  grew since is taken as it is.
- A mapping and the executable are recorded apart from any descriptor of the same file, with flags 0
  (criu/cr-dump.c:434-470): a mapped file is always size-checked, however it was opened.
- Build-id: recorded for every ELF file whose size is recorded, opened or mapped (files-reg.c:1693); compared only if
  the file has one at restore too (2137-2156).
- Mode: compared for files of all types (2284-2298) unless `--skip-file-rwx-check`, which leaves out rwx bits only.
- Content, owner, inode and times are not checked.
- Not checked at all: what is given by `--inherit-fd` under its path (2200). External files, handed in too, are.
"""

from __future__ import annotations

import os
import stat
from typing import ClassVar, Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_image, read_messages
from crckpt.images.wire import Message

GHOST: Final = "ghost"
LINKED: Final = "linked"
PROCESS: Final = "process"

_REMAP_KINDS: Final = {0: LINKED, 1: GHOST, 2: PROCESS}
_OLD_GHOST_BIT: Final = 1 << 31


class Remap(Struct, frozen=True):
    """Where CRIU finds a file whose path is gone (images/remap-file-path.proto).

    `kind` GHOST: no name is left, the content is in `ghost-file-<target, hexadecimal>.img`. LINKED: other names are
    left, and CRIU gave it one more for the restore, `path` (`target` is that one's file id). PROCESS: a file in the
    /proc directory of a dead process, whose PID is `target`. `size` is a ghost's content in bytes.
    """

    kind: str
    target: int
    path: str = ""
    size: int | None = None


class RegularFile(Struct, frozen=True):
    """A file with a path: regular, directory, device, named pipe. The module's docstring says what a restore checks.

    `flags` are open(2)'s (0 for mappings, executables and directories of a process), `mode` is st_mode. `size` is
    None where CRIU does not check it; `build_id` hexadecimal, empty if there is none. `mnt_id` is None unless the
    tree has a mount namespace of its own. `external` files are handed in by whoever restores.
    """

    kind: ClassVar[str] = "file"

    id: int
    path: str
    flags: int
    pos: int
    size: int | None
    mode: int | None
    build_id: str
    mnt_id: int | None
    external: bool
    remap: Remap | None = None

    @property
    def title(self) -> str:
        """The path, with a word on deleted files."""
        return f"{self.path} (deleted)" if self.is_deleted else self.path

    @property
    def is_regular(self) -> bool:
        """Whether it is neither directory nor device nor pipe; True if CRIU did not say."""
        return self.mode is None or stat.S_ISREG(self.mode)

    @property
    def is_deleted(self) -> bool:
        """Whether its path was gone at the dump: CRIU brings the file itself, or a link to it."""
        return self.remap is not None

    @property
    def is_ghost(self) -> bool:
        """Whether its content is in the images, as no name of it is left."""
        return self.remap is not None and self.remap.kind == GHOST

    @property
    def is_append_only(self) -> bool:
        """Whether it is written only at its end: CRIU then does not check its size (criu/files-reg.c:1456)."""
        return self.flags & os.O_ACCMODE == os.O_WRONLY and bool(self.flags & os.O_APPEND)


class Ghost(Struct, frozen=True):
    """A deleted file's image: owner, mode, and its content's size in bytes (holes included, and what is stored)."""

    uid: int
    gid: int
    mode: int
    size: int
    stored: int


def decode_regular_file(message: Message) -> RegularFile:
    """From a record of `files.img`."""
    return RegularFile(
        id=message.required(1),
        path=message.text(6),
        flags=message.uint(2),
        pos=message.signed(3),
        size=message.optional(8),
        mode=message.optional(10),
        build_id=b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in message.uints(11)).hex(),
        mnt_id=message.sint(7) if 7 in message else None,
        external=message.flag(9),
    )


def read_remaps(data: bytes, name: str = "remap-fpath.img") -> dict[int, Remap]:
    """Remaps by the id of the file whose path is gone. `path` and `size` are left empty. Raises IntegrityError."""
    return {message.required(1): _remap(message) for message in read_messages(data, name, magics.REMAP_FPATH)}


def ghost_image(target: int) -> str:
    """The name of the image that holds a ghost's content."""
    return f"ghost-file-{target:x}.img"


def read_ghost(data: bytes, name: str = "ghost-file.img") -> Ghost:
    """Raises IntegrityError when the image is damaged."""
    image = read_image(data, name, magics.GHOST_FILE)
    message = Message(image.records[0].payload if image.records else b"", name)
    uid, gid, mode = (message.required(number) for number in range(1, 4))
    stored = sum(len(record.extra) for record in image.records)
    return Ghost(uid, gid, mode, message.uint(10, default=stored), stored)


def _remap(message: Message) -> Remap:
    """Images without a type come from old CRIU, which had it in the id's top bit (criu/files-reg.c:733)."""
    target, kind = message.required(2), message.optional(3)
    if kind is None:
        return Remap(GHOST if target & _OLD_GHOST_BIT else LINKED, target & ~_OLD_GHOST_BIT)
    return Remap(_REMAP_KINDS.get(kind, "unknown"), target)
