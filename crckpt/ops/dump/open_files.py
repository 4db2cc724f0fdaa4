"""Record which files a live tree has open.

`crckpt.ops.restore.open_files` checks that a restored tree has these open, and no others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.disk.checked_files import digest_head, read_head
from crckpt.host.disk.users import read_link_target
from crckpt.host.proc.fd import read_link
from crckpt.host.proc.maps import find_mapped_files


class DumpedFiles(Struct, frozen=True):
    """The files by path: `known`, device, inode and whether it is open for writing; `owners`, the ids of users.

    `heads`: digests of the first bytes of files that are open for writing.
    """

    known: dict[str, list[tuple[int, int, int]]]
    owners: dict[str, list[int]]
    heads: dict[str, str] = {}


def record(tree: proc.Tree, descriptors: Iterable[proc.Descriptor]) -> DumpedFiles:
    """Record the files, for the details of the checkpoint."""
    known: dict[str, set[tuple[int, int, int]]] = {}
    owners: dict[str, set[int]] = {}
    heads: dict[str, str] = {}
    for descriptor in descriptors:
        if descriptor.identity != (0, 0) and descriptor.target.startswith("/"):
            writes = int(descriptor.flags & os.O_ACCMODE != os.O_RDONLY)
            known.setdefault(descriptor.target, set()).add((*descriptor.identity, writes))
            link = f"/proc/{descriptor.pid}/fd/{descriptor.fd}"
            # To open a file breaks a lease on it.
            if writes and descriptor.links and stat.S_ISREG(descriptor.mode) and "LEASE" not in descriptor.info:
                heads.setdefault(descriptor.target, digest_head(read_head(link)))
            found = read_link_target(link)
            if found is not None and (found.device, found.inode) == descriptor.identity:
                owners.setdefault(descriptor.target, set()).add(found.owner)
    for process in tree.processes:
        links = {f"/proc/{process.pid}/{name}": 0 for name in ("exe", "cwd", "root")}
        links |= {link: _is_writable(link) for link in find_mapped_files(process.pid).values()}
        reached = [(found, writes) for link, writes in links.items() if (found := read_link_target(link))]
        # Another process may have got its PID: its files are not the tree's.
        for found, writes in reached if process.identity.keeps_pid else ():
            known.setdefault(found.path, set()).add((found.device, found.inode, writes))
            owners.setdefault(found.path, set()).add(found.owner)
    return DumpedFiles(
        {path: sorted(found) for path, found in known.items()},
        {path: sorted(found) for path, found in owners.items()},
        heads,
    )


def read_times(tree: proc.Tree, descriptors: Iterable[proc.Descriptor]) -> dict[str, float]:
    """Read when files that the tree can write were written last, by path: by the clock of their own server."""
    links = {f"/proc/{each.pid}/fd/{each.fd}" for each in descriptors if each.flags & os.O_ACCMODE != os.O_RDONLY}
    links |= {link for pid in tree.pids for link in find_mapped_files(pid).values() if _is_writable(link)}
    read = (read_link(link) for link in links)
    return {found[0]: found[1].st_mtime for found in read if found is not None and stat.S_ISREG(found[1].st_mode)}


def _is_writable(link: str) -> int:
    """Return whether a mapped file was opened for writing, as the mode of its link in /proc says."""
    with suppress(OSError):
        return int(bool(os.lstat(link).st_mode & stat.S_IWUSR))
    return 0
