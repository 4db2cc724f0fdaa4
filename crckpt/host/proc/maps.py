"""/proc/PID/maps, map_files, smaps and smaps_rollup: what processes have mapped, and what of it CRIU cannot save.

Source: proc_pid_maps(5), proc_pid_smaps(5).
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.budget import Budget
from crckpt.host.proc import procfs
from crckpt.host.proc.procfs import DELETED
from crckpt.images.vdso import is_sound
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
# Maps of the kernel that a restore moves: without them CRIU fails, or its code crashes (criu/pie/parasite-vdso.c).
_VDSO, _VVAR = "[vdso]", "[vvar]"
_VDSO_MAP: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S{4} \S+ \S+ \d+ +\[vdso\]\n", re.MULTILINE)
_AT_SYSINFO_EHDR: Final = 33  # getauxval(3)

_HINTS: Final = ("/secretmem", "anon_inode:", "socket:", "/SYSV", "[uprobes]", "/dev/", " sl", " lf")

UnsavableKind = Literal[
    "device", "on-fault", "ring", "sealed", "sysv", "sysv-part", "unknown", "uprobes", "vdso", "vdso-changed"
]
# A socket's map is of a packet socket: CRIU makes an empty ring in its place.
_KINDS: Final[dict[str, UnsavableKind]] = {
    "/dev/": "device",
    "socket:": "ring",
    "/SYSV": "sysv",
    "[uprobes]": "uprobes",
}


class Map(Struct, frozen=True):
    """A map of a process: the words of its line. `rights` are like `rw-p`, `path` is empty or may be no path: `[heap]`.

    A process may have 65,530 of them: numbers are made of words only where they are asked for.
    """

    addresses: str
    rights: str
    offset: str
    device: str
    inode: str
    path: str = ""

    @property
    def start(self) -> int:
        """Its first address."""
        return int(self.addresses.partition("-")[0], 16)

    @property
    def end(self) -> int:
        """The address behind it."""
        return int(self.addresses.partition("-")[2], 16)

    @property
    def is_shared(self) -> bool:
        """Whether others see what is written to it."""
        return self.rights[3] == "s"

    @property
    def is_writable(self) -> bool:
        """Whether the process can write to it."""
        return self.rights[1] == "w"

    @property
    def has_file(self) -> bool:
        """Whether it is of a file, though that may have no name."""
        return self.inode != "0"

    def link(self, pid: int) -> str:
        """A link to its file, in the process that has it."""
        # The link's name has no zeros in front.
        return f"/proc/{pid}/map_files/{self.start:x}-{self.end:x}"


def read_maps(pid: int, budget: Budget | None = None) -> list[Map]:
    """Read the maps of a process, by address; with `budget` only so many. Raises OSError if it has ended."""
    path = f"/proc/{pid}/maps"
    return [Map(*line.split(maxsplit=5)) for line in (budget.read_lines(path) if budget else procfs.lines(path))]


def count_maps(pid: int) -> int:
    """Count the maps of a process; 0 if it has ended."""
    with suppress(OSError):
        return len(procfs.lines(f"/proc/{pid}/maps"))
    return 0


def find_mapped_files(pid: int) -> dict[tuple[str, str, str], str]:
    """Each file that a process has mapped -> a link to it; none if the process has ended.

    A file is named by device, inode and path: the same file has the same name in every process. The link is of a map
    that writes to the file, if there is one.
    """
    found: dict[tuple[str, str, str], str] = {}
    with suppress(OSError):
        for each in read_maps(pid):
            file = each.device, each.inode, each.path
            if each.path and each.has_file and (file not in found or (each.is_shared and each.is_writable)):
                found[file] = each.link(pid)
    return found


def find_deleted_mapped_files(pid: int) -> tuple[tuple[str, int, int], ...]:
    """(path, bytes, links) of mapped files whose name is gone; bytes as in `Descriptor.most`."""
    found = {}
    for (*_, path), link in find_mapped_files(pid).items():
        with suppress(OSError):
            if path.endswith(DELETED):
                status = os.stat(link)
                size = max(status.st_size, status.st_blocks * 512)
                found[status.st_dev, status.st_ino] = os.readlink(link), size, status.st_nlink
    return tuple(found.values())


class UnsavableMap(Struct, frozen=True):
    """A map that CRIU cannot save as it is. `start` is its first address, 0 if it is missing.

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
    rollups = []
    for pid in pids:
        with suppress(OSError):
            rollups.append(procfs.lines(f"/proc/{pid}/smaps_rollup"))
    return sum_memory(rollups)


def sum_memory(rollups: Iterable[Sequence[str]]) -> int:
    """`memory` of the processes that have these lines of smaps_rollup."""
    own = shared = 0
    for lines in rollups:
        sizes = {name: int(size) << 10 for name, size, *_ in map(str.split, lines[1:])}
        own += sum(sizes.get(name, 0) for name in _IN_NO_FILE)
        # The kernel does not say how many processes share huge pages: they count as if all shared the same ones.
        shared = max(shared, sizes.get(_SHARED_HUGE, 0))
    return own + shared


def find_unsavable_maps(pid: int) -> tuple[UnsavableMap, ...]:
    """The maps of a process that CRIU cannot save, by address; none if the process has ended."""
    with suppress(OSError):
        text = procfs.text(f"/proc/{pid}/smaps")
        found = (*_find_unmapped(pid, text), *_find_changed_vdso(pid, text))
        if any(hint in text for hint in _HINTS):
            found += tuple(found for each in _MAP.finditer(text) for found in _judge(pid, *each.groups()))
        return (*found, *_find_parts(pid)) if any(each.kind == "sysv" for each in found) else found
    return ()


def _find_changed_vdso(pid: int, maps: str) -> Iterator[UnsavableMap]:
    """Find a vDSO that CRIU must not read."""
    for each in _VDSO_MAP.finditer(maps):
        start, end = (int(address, 16) for address in each.groups())
        with suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(start)
            if not is_sound(memory.read(end - start)):
                yield UnsavableMap(pid, start, _VDSO, "vdso-changed")


def _find_unmapped(pid: int, maps: str) -> Iterator[UnsavableMap]:
    """Find which of its own maps a process has unmapped that the kernel gave it."""
    if not maps or (_VDSO in maps and _VVAR in maps):
        return
    if _VDSO in maps:
        # Old kernels have none.
        if _VVAR in procfs.text("/proc/self/maps"):
            yield UnsavableMap(pid, 0, _VVAR, "vdso")
        return
    # The kernel may give none (vdso=0). A program of 32 bits has other words.
    given = Path(f"/proc/{pid}/auxv").read_bytes()
    for words in ("=2Q", "=2I"):
        pairs = struct.iter_unpack(words, given[: len(given) // 16 * 16])
        if any(key == _AT_SYSINFO_EHDR and value for key, value in pairs):
            yield UnsavableMap(pid, 0, _VDSO, "vdso")
            return


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
    if _UNSAVABLE.match(path):
        found = (kind for begin, kind in _KINDS.items() if path.startswith(begin))
        kind: UnsavableKind = next(found, "unknown")
        mode = 0
        with suppress(OSError):
            mode = os.stat(f"/proc/{pid}/map_files/{addresses}").st_mode if kind == "device" else 0
        if kind != "device" or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            yield UnsavableMap(pid, start, path, kind)
    if " lf" in details and _ON_FAULT.search(details):
        yield UnsavableMap(pid, start, path, "on-fault")
    # The kernel may seal its own maps. Searching every map for the expression would be slow: so ` sl` comes first.
    if " sl" in details and _SEALED.search(details) and not path.startswith(("[v", "[uprobes]")):
        yield UnsavableMap(pid, start, path, "sealed")
