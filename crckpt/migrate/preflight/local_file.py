"""The file that the destination has at the path of a file of the tree."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from crckpt.images.filelocks import LockKind
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.preflight.restore.host import FileState


class LocalFile(Struct, frozen=True):
    """The file that a host has at a path.

    - `problem`: empty; `unmounted`: its file system is mounted only when it is used; `silent`: its file system does not
      answer; `unasked`: it comes after such a file; `refused`: the kernel does not let crckpt look (`why`)
    - `state`: None if there is no file, or a problem
    - `digest`: empty if the content was not read
    - `modified`: nanoseconds since 1970
    - `shared_by`: the kind of its network file system; `is_same`: it is the source's, on the same kernel
    - `owners`: the users who own the file, or a directory or link of its path, by their numbers; a name may be empty
    - `local_locks`: the kinds of locks on it that hold on this host only
    """

    problem: Literal["", "unmounted", "silent", "unasked", "refused"] = ""
    state: FileState | None = None
    digest: str = ""
    modified: int = 0
    gid: int = 0
    inode: int = 0
    shared_by: str = ""
    is_same: bool = False
    owners: dict[int, str] = {}
    local_locks: frozenset[LockKind] = frozenset()
    why: str = ""

    def is_copy_of(self, asked: AskedFile) -> bool:
        """Whether size, time and content are those of a file of the source; the content only if that was read."""
        is_same = self.state is not None and (self.state.size, self.modified) == (asked.size, asked.modified)
        return is_same and self.digest == asked.digest

    @property
    def is_missing(self) -> bool:
        """Whether there is surely no file."""
        return not self.problem and self.state is None
