"""Ask about the files of a live tree: what it has open, mapped, runs, or works in."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal

from msgspec.structs import replace

from crckpt.host.disk.checked_files import read_build_id, read_digest, regular_opened
from crckpt.host.proc import Descriptor
from crckpt.host.proc.fd import read_link
from crckpt.host.proc.maps import read_maps
from crckpt.host.proc.mountinfo import read_mounts
from crckpt.host.proc.procfs import DELETED
from crckpt.images.processes import LockKind
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.model import MEBIBYTE

LARGEST_READ: Final = 64 * MEBIBYTE
"""Larger files are compared by size and time: to read them takes longer than a user waits for a check."""

MOST_READ: Final = 1024 * MEBIBYTE
"""The content of all files together that either side reads for a check."""

_RECENT_NS: Final = 100_000_000
_LARGEST_TIME: Final = (1 << 63) - 1
# Files that are on no disk, or that come back with the tree.
NAMELESS: Final = ("/memfd:", "/anon_hugepage", "/dev/zero (deleted)", "/SYSV", "/[aio]", "/proc/", "/secretmem")
"""The beginnings of such names."""
_SHARED: Final = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse\.(ceph|glusterfs|juicefs|sshfs)|gfs2|gpfs|lustre|nfs4?|ocfs2|orangefs|smb3|virtiofs"
)


def find_shared_file_systems() -> dict[int, str]:
    """Find the network file systems of our mount namespace: device -> kind."""
    return {mount.device: mount.kind for mount in read_mounts() if _SHARED.fullmatch(mount.kind)}


def find_local_locks() -> dict[int, frozenset[LockKind]]:
    """Find the network file systems with file locks that hold on this host only: device -> kinds of these locks."""
    every: frozenset[LockKind] = frozenset({"flock", "POSIX", "OFD"})
    found: dict[int, frozenset[LockKind]] = {}
    for mount in read_mounts():
        if not _SHARED.fullmatch(mount.kind):
            continue
        # Of local_lock: nfs(5).
        if mount.kind in {"9p", "fuse.sshfs", "virtiofs"} or "local_lock=all" in mount.of_all:
            found[mount.device] = every
        elif "local_lock=flock" in mount.of_all:
            found[mount.device] = frozenset({"flock"})
        elif "local_lock=posix" in mount.of_all:
            found[mount.device] = every - {"flock"}
    return found


class FileAsker:
    """Collects the files of a tree: each path once, and a log apart from other uses of its path."""

    def __init__(self, ids: Iterator[int]) -> None:
        self._ids = ids
        self._asked: dict[tuple[bytes, str, bool], AskedFile] = {}
        self._keys: dict[int, tuple[bytes, str, bool]] = {}
        self._links: dict[int, str] = {}
        self._opened: dict[tuple[tuple[int, int], str, int], int] = {}
        self._maps: dict[tuple[str, str, str], int] = {}
        self._shared = find_shared_file_systems()

    def ask_descriptor(self, found: Descriptor) -> int:
        """Return the id of the file at a descriptor; 0 if nothing must be there for it."""
        if found.is_namespace:
            return 0
        # Processes inherit descriptors: a tree may have the same file open many thousand times.
        key = (found.identity, found.target, found.flags)
        number = self._opened.get(key)
        if number is None:
            number = self._ask(f"/proc/{found.pid}/fd/{found.fd}", flags=found.flags, position=found.pos)
            if found.identity != (0, 0):
                self._opened[key] = number
        elif found.is_append_only and number:
            self._change(number, position=found.pos)
        return number

    def of_process(self, pid: int) -> tuple[tuple[int, ...], int | None, int | None, int | None]:
        """Return the files that a process has mapped, its program, its directory and its root. None if it ends now."""
        exe, cwd, root = (self._ask(f"/proc/{pid}/{name}") or None for name in ("exe", "cwd", "root"))
        mapped: dict[int, None] = {}
        with suppress(OSError):
            for each in read_maps(pid):
                if not each.has_file or not each.path.startswith("/") or each.path.startswith(NAMELESS):
                    continue
                file = each.device, each.inode, each.path
                is_written = each.is_shared and each.is_writable
                is_executed = each.rights[2] == "x"
                if file not in self._maps:
                    self._maps[file] = self._ask(each.link(pid))
                number = self._maps[file]
                if number and (is_written or is_executed):
                    self._change(number, is_written=is_written, is_mapped=is_written, is_executed=is_executed)
                mapped[number] = None
        mapped.pop(0, None)
        if exe is not None:
            self._change(exe, is_executed=True)
        return tuple(mapped), exe, cwd, root

    def list(self) -> tuple[AskedFile, ...]:
        """Return all files, with the digests of those that the tree only reads."""
        left = MOST_READ
        found = []
        for asked in self._asked.values():
            # A build-id tells builds apart. What is on shared storage is the same file.
            is_told = bool(asked.removed or asked.build_id or asked.shared_by)
            if stat.S_ISREG(asked.mode) and not is_told and asked.size <= min(LARGEST_READ, left):
                left -= asked.size
                # The program may have put a device or a FIFO there since.
                with suppress(OSError), regular_opened(self._links[asked.id]) as file:
                    asked = replace(asked, digest=read_digest(file, asked.size) if file is not None else "")
            found.append(asked)
        return tuple(found)

    def _ask(self, link: str, *, flags: int = 0, position: int = 0) -> int:
        # What was just closed is not asked about, nor a file whose file system does not answer: the preflight of the
        # checkpoint looks for it.
        target, status = read_link(link) or ("", None)
        if status is None or not target.startswith("/") or target.startswith(NAMELESS):
            return 0
        is_log = flags & os.O_ACCMODE == os.O_WRONLY and bool(flags & os.O_APPEND)
        removed: Literal["", "gone", "linked"] = ""
        if target.endswith(DELETED):
            removed = "linked" if status.st_nlink else "gone"
        key = (os.fsencode(target.removesuffix(DELETED)), removed, is_log)
        is_regular = stat.S_ISREG(status.st_mode)
        is_written = is_regular and flags & os.O_ACCMODE != os.O_RDONLY
        before = self._asked.get(key)
        if before is not None:
            self._change(before.id, flags=flags, is_written=is_written, position=position)
            return before.id
        build_id = b""
        with suppress(OSError):
            build_id = (read_build_id(link) if is_regular and not is_written else None) or b""
        # The kernel's clock of files may be some milliseconds old.
        is_settled = status.st_ctime_ns < time.time_ns() - _RECENT_NS
        number = next(self._ids)
        self._links[number], self._keys[number] = link, key
        self._asked[key] = AskedFile(
            id=number,
            path=key[0],
            mode=status.st_mode,
            size=status.st_size if is_regular else 0,
            flags=flags,
            position=max(position, 0),
            build_id=build_id.hex(),
            modified=limit_time(status.st_mtime_ns),
            changed=limit_time(status.st_ctime_ns) if is_settled else 0,
            uid=status.st_uid,
            gid=status.st_gid,
            inode=status.st_ino,
            device=status.st_dev,
            is_written=is_written,
            removed=removed,
            shared_by=self._shared.get(status.st_dev, ""),
        )
        return number

    def _change(
        self,
        number: int,
        *,
        flags: int = os.O_PATH,
        is_written: bool = False,
        is_mapped: bool = False,
        is_executed: bool = False,
        position: int = 0,
    ) -> None:
        key = self._keys[number]
        asked = self._asked[key]
        self._asked[key] = replace(
            asked,
            # A use that can read the file counts more than one that only has its path.
            flags=flags if asked.flags & os.O_PATH and not flags & os.O_PATH else asked.flags,
            is_written=asked.is_written or is_written,
            is_mapped=asked.is_mapped or is_mapped,
            is_executed=asked.is_executed or is_executed,
            position=max(asked.position, position),
        )


def limit_time(nanoseconds: int) -> int:
    """Return the time of a file as messages can have it."""
    # A user can set any year, on tmpfs up to 64 bits of seconds.
    return max(-_LARGEST_TIME, min(nanoseconds, _LARGEST_TIME))
