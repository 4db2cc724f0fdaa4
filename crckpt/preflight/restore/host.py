"""The state of this host, as a restore needs it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from crckpt.host.proc import IdUser
from crckpt.host.proc.file_users import HeldLock
from crckpt.preflight.restore.requirements import HostResources

Refusal = Literal["taken", "missing", "occupied", "unwritable", "linked", "absent"]
"""Why a socket cannot have its address or name back: another program has it, this host does not have it (or not the
directory of a path), another file is there, nothing can be made there, its path leads through a link that is not
followed. `absent`: nobody has the name of its peer."""

if TYPE_CHECKING:
    from crckpt.host.disk.packages import Package
    from crckpt.host.proc.file_users import FileWriter


class FileState(Struct, frozen=True):
    """A file of this host, as it is now: `size` in bytes, `owner` a user id.

    `written`: when its content changed. `changed`: when anything changed, also its name or mode. `is_linked`: its path
    leads through a symbolic link. `is_redirected`: a restore does not follow that link. `head`: its first bytes, read
    only if the checkpoint has those of its file. `other_name`: the link that CRIU made is missing, and this is another
    name of the file in the same directory.
    """

    size: int
    mode: int
    written: datetime
    changed: datetime
    build_id: str
    is_linked: bool = False
    owner: int = 0
    inode: int = 0
    head: bytes = b""
    other_name: str = ""
    is_redirected: bool = False


class HostState(Struct, frozen=True):
    """The state of everything on this host that a checkpoint needs. A missing file is None.

    `refused`, `released`: by the id of a socket; seconds until an address that only closed connections have is free.
    `interfaces`: number and name of each. `unwatched`: watched paths that are missing. `packages` of changed files,
    `locks` on each file, `writers` of changed ones: by path; the last only if a file is to be cut back. `us` is
    crckpt's own PID. `terminals`: the N of each /dev/pts/N that is in use.
    """

    owners: tuple[IdUser, ...]
    files: dict[str, FileState | None]
    refused: dict[int, Refusal]
    resources: HostResources
    interfaces: tuple[tuple[int, str], ...] = ()
    unwatched: frozenset[str] = frozenset()
    released: dict[int, int] = {}
    packages: dict[str, Package] = {}
    locks: dict[str, tuple[HeldLock, ...]] = {}
    writers: dict[str, FileWriter] = {}
    us: int = 0
    terminals: frozenset[int] = frozenset()
