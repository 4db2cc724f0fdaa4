"""Pieces of a live process's memory that CRIU cannot save as they are. Nothing is stopped or changed by looking."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.proc import procfs

_PROC: Final = Path("/proc")
_ODD: Final = re.compile(r"/secretmem|anon_inode:|/SYSV|\[uprobes\]|/dev/(?!zero\b|shm/)")
_PIECE: Final = re.compile(r"^([0-9a-f]+-[0-9a-f]+) \S{4} \S+ \S+ \d+ *(.*)\n((?:[A-Z].*\n)*)", re.MULTILINE)
_SEALED: Final = re.compile(r"^VmFlags:.* sl\b", re.MULTILINE)
"""Looked for where ` sl` is: of every piece it would take its time."""

_HINTS: Final = ("/secretmem", "anon_inode:", "/SYSV", "[uprobes]", "/dev/", " sl")
"""Where none of them is, there is nothing odd: to tell that is ten times as quick as to take the text apart."""

Kind = Literal["device", "sealed", "sysv", "unknown", "uprobes"]


class Mapping(Struct, frozen=True):
    """A piece of memory, `start` is its address."""

    pid: int
    start: int
    path: str
    kind: Kind


def odd_mappings(pid: int) -> tuple[Mapping, ...]:
    """Those that need a word, by address; none if the process has ended. Source: proc_pid_smaps(5)."""
    with suppress(OSError):
        said = procfs.text(f"/proc/{pid}/smaps")
        if not any(hint in said for hint in _HINTS):
            return ()
        return tuple(found for piece in _PIECE.finditer(said) for found in _odd(pid, *piece.groups()))
    return ()


def mapped_files(pid: int) -> dict[tuple[str, str, str], str]:
    """Each file that a process has mapped -> a link to it; none if the process has ended.

    A file is named by device, inode and path, as proc_pid_maps(5) writes them: the same file has the same name in every
    process.
    """
    found: dict[tuple[str, str, str], str] = {}
    with suppress(OSError):
        for line in procfs.lines(f"/proc/{pid}/maps"):
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[4] != "0" and (file := (words[3], words[4], words[5])) not in found:
                # The link's name has no zeros in front.
                start, end = (int(word, 16) for word in words[0].split("-"))
                found[file] = f"/proc/{pid}/map_files/{start:x}-{end:x}"
    return found


def _odd(pid: int, addresses: str, path: str, details: str) -> Iterator[Mapping]:
    start = int(addresses.partition("-")[0], 16)
    if _ODD.match(path) and (kind := _kind(_PROC / str(pid) / "map_files" / addresses, path)):
        yield Mapping(pid, start, path, kind)
    # What the kernel maps itself it may seal itself.
    if " sl" in details and _SEALED.search(details) and not path.startswith(("[v", "[uprobes]")):
        yield Mapping(pid, start, path, "sealed")


def _kind(link: Path, path: str) -> Kind | None:
    if path.startswith("/dev/"):
        return "device" if _is_device(link) else None
    return "sysv" if path.startswith("/SYSV") else "uprobes" if path == "[uprobes]" else "unknown"


def _is_device(link: Path) -> bool:
    with suppress(OSError):
        mode = link.stat().st_mode
        return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    return False
