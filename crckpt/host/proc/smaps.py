"""/proc/PID/smaps and smaps_rollup: how much memory processes have, and which of it CRIU cannot save.

Source: proc_pid_smaps(5).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.proc import procfs
from crckpt.host.proc.maps import read_maps
from crckpt.model import PAGE_SIZE

# The lines of smaps_rollup that count what CRIU writes. Shared memory counts by its Pss, the share of each process, so
# that the sum over all processes counts each page once.
_IN_NO_FILE: Final = ("Anonymous:", "Pss_Shmem:", "Swap:", "Private_Hugetlb:")
_SHARED_HUGE: Final = "Shared_Hugetlb:"

# CRIU refuses unknown maps (criu/proc_parse.c:502), [uprobes] without an option (614), and SysV memory outside the
# tree's IPC namespace (criu/cr-dump.c:477).
_UNSAVABLE: Final = re.compile(r"/secretmem|anon_inode:|socket:|/SYSV|\[uprobes\]|/dev/(?!zero\b|shm/)")
_MAP: Final = re.compile(r"^([0-9a-f]+-[0-9a-f]+) \S{4} \S+ \S+ \d+ *(.*)\n((?:[A-Z].*\n)*)", re.MULTILINE)
# mseal(2), Linux 6.10. CRIU restores such a map without its seal.
_SEALED: Final = re.compile(r"^VmFlags:.* sl\b", re.MULTILINE)
# mlock2(2), Linux 4.4. CRIU locks all of it: the restore needs memory for pages that the program never touched.
_ON_FAULT: Final = re.compile(r"^VmFlags:.* lf\b", re.MULTILINE)

# Where none of these is in the text, all can be saved: to see that takes a tenth of the time that parsing takes.
_HINTS: Final = ("/secretmem", "anon_inode:", "socket:", "/SYSV", "[uprobes]", "/dev/", " sl", " lf")

UnsavableKind = Literal["device", "on-fault", "ring", "sealed", "sysv", "sysv-part", "unknown", "uprobes"]


class UnsavableMap(Struct, frozen=True):
    """A map that CRIU cannot save as it is. `start` is its first address.

    Of a segment of System V memory of which only a part is attached, `path` is the id.
    """

    pid: int
    start: int
    path: str
    kind: UnsavableKind


def memory(*pids: int) -> int:
    """Bytes of these processes' memory that are in no file: their own, what they share, and what is swapped out.

    Nothing of processes that have ended.
    """
    return sum_memory(_rollups(pids))


def sum_memory(rollups: Iterable[Sequence[str]]) -> int:
    """`memory` of the processes that have these lines of smaps_rollup."""
    own = shared = 0
    for lines in rollups:
        sizes = {name: int(size) << 10 for name, size, *_ in map(str.split, lines[1:])}
        own += sum(sizes.get(name, 0) for name in _IN_NO_FILE)
        # The kernel does not say how many processes share huge pages: they count as if all shared the same ones.
        shared = max(shared, sizes.get(_SHARED_HUGE, 0))
    return own + shared


def _rollups(pids: Iterable[int]) -> Iterator[Sequence[str]]:
    for pid in pids:
        with suppress(OSError):
            yield procfs.lines(f"/proc/{pid}/smaps_rollup")


def find_unsavable_maps(pid: int) -> tuple[UnsavableMap, ...]:
    """The maps of a process that CRIU cannot save, by address; none if the process has ended."""
    with suppress(OSError):
        text = procfs.text(f"/proc/{pid}/smaps")
        if any(hint in text for hint in _HINTS):
            found = tuple(found for each in _MAP.finditer(text) for found in _judge(pid, *each.groups()))
            return (*found, *_find_parts(pid)) if any(each.kind == "sysv" for each in found) else found
    return ()


def _find_parts(pid: int) -> Iterator[UnsavableMap]:
    """Find segments with a hole: CRIU saves them, and does not restore them (criu/shmem.c, open_shmem_sysv)."""
    ends: dict[str, tuple[int, int]] = {}  # id -> the address and the offset after the last map of an attachment
    sizes: dict[str, int] = {}
    broken: dict[str, int] = {}
    for each in read_maps(pid):
        if not each.path.startswith("/SYSV"):
            continue
        offset = int(each.offset, 16)
        sizes[each.inode] = -(-os.stat(each.link(pid)).st_size // PAGE_SIZE) * PAGE_SIZE
        end, length = ends.get(each.inode, (0, sizes[each.inode]))
        is_whole = length == sizes[each.inode] if offset == 0 else (each.start, offset) == (end, length)
        if not is_whole:
            broken[each.inode] = each.start
        ends[each.inode] = each.end, offset + each.end - each.start
    broken |= {segment: end for segment, (end, length) in ends.items() if length != sizes[segment]}
    yield from (UnsavableMap(pid, start, f"{int(segment):x}", "sysv-part") for segment, start in broken.items())


def _judge(pid: int, addresses: str, path: str, details: str) -> Iterator[UnsavableMap]:
    start = int(addresses.partition("-")[0], 16)
    link = Path(f"/proc/{pid}/map_files/{addresses}")
    if _UNSAVABLE.match(path) and (kind := _kind(link, path)):
        yield UnsavableMap(pid, start, path, kind)
    if " lf" in details and _ON_FAULT.search(details):
        yield UnsavableMap(pid, start, path, "on-fault")
    # The kernel may seal its own maps. Searching every map for the expression would be slow: so ` sl` comes first.
    if " sl" in details and _SEALED.search(details) and not path.startswith(("[v", "[uprobes]")):
        yield UnsavableMap(pid, start, path, "sealed")


def _kind(link: Path, path: str) -> UnsavableKind | None:
    if path.startswith("/dev/"):
        return "device" if _is_device(link) else None
    # Of a packet socket: CRIU makes an empty ring in its place.
    if path.startswith("socket:"):
        return "ring"
    return "sysv" if path.startswith("/SYSV") else "uprobes" if path == "[uprobes]" else "unknown"


def _is_device(link: Path) -> bool:
    with suppress(OSError):
        mode = link.stat().st_mode
        return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    return False
