"""Compare two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import InetSocket, UnixSocket
from crckpt.images.tree import ImageProcess, OpenDescriptor
from crckpt.model import PAGE_SIZE
from crckpt.ops.context import Context
from crckpt.ops.inspect.descriptors import (
    FileSection,
    Holder,
    OpenFiles,
    SocketSection,
    file_section,
    is_socket,
    open_files,
    socket_section,
)
from crckpt.ops.inspect.images import read_image_tree
from crckpt.ops.inspect.memory import Memory, Region, cut_extents
from crckpt.store import Checkpoint, open_reader
from crckpt.store.format.extents import (
    EXTENT,
    ZERO,
    Extents,
    Mask,
    Positions,
    extent_ends,
    find_extents,
    renumber_packs,
    split_extents,
)

if TYPE_CHECKING:
    from crckpt.store.read.reader import Reader


class UnmatchedProcess(Struct, frozen=True):
    """A process that only one of the checkpoints has. `pages` is how many pages of it the checkpoint has."""

    pid: int
    comm: str
    pages: int


class DescriptorChange(Struct, frozen=True):
    """Files and sockets that a process has open in one of the checkpoints only."""

    files: tuple[FileSection, ...] = ()
    sockets: tuple[SocketSection, ...] = ()


class ProcessFacts(Struct, frozen=True):
    """The facts that a process may change about itself."""

    comm: str
    state: str
    ppid: int
    exe: str


class ProcessChange(Struct, frozen=True):
    """A process that both checkpoints have, and that differs."""

    pid: int
    comm: str
    before: ProcessFacts
    after: ProcessFacts
    threads_come: tuple[int, ...]
    threads_gone: tuple[int, ...]
    opened: DescriptorChange
    closed: DescriptorChange
    maps: tuple[MapChange, ...]
    pages: PageChanges


class CheckpointDiff(Struct, frozen=True):
    """The differences from `first` to `second`. `pages` sums up `changed`; shared memory counts in each process."""

    first: Checkpoint
    second: Checkpoint
    come: tuple[UnmatchedProcess, ...]
    gone: tuple[UnmatchedProcess, ...]
    changed: tuple[ProcessChange, ...]
    pages: PageChanges


def diff(context: Context, first: str, second: str) -> CheckpointDiff:
    """Compare two checkpoints of a store. A process is the same in both if PID and program are the same.

    It reads only those pages that the two have in different places of the store, and takes bounded memory. Raises
    NoSuchCheckpoint, IntegrityError.
    """
    repository = context.repository()
    with repository.shared():
        one, two = (repository.get(repository.resolve(ref)) for ref in (first, second))
        before, after = (read_image_tree(repository, checkpoint) for checkpoint in (one, two))
        old, new = ({process.pid: process for process in tree.processes} for tree in (before, after))
        files = open_files(before), open_files(after)
        numbers = number_packs(one, two)
        changed = []
        with open_reader(repository, one) as reading_one, open_reader(repository, two) as reading_two:
            # If another program has the PID, the old process has gone and a new one has come.
            both = [pid for pid in new if pid in old and _is_same(old[pid], new[pid])]
            for pid in both:
                maps = page_changes(Memory(reading_one, old[pid]), Memory(reading_two, new[pid]), numbers)
                change = _change(old[pid], new[pid], files, maps)
                if change is not None:
                    changed.append(change)
            come = tuple(_describe_unmatched(reading_two, process) for pid, process in new.items() if pid not in both)
            gone = tuple(_describe_unmatched(reading_one, process) for pid, process in old.items() if pid not in both)
    return CheckpointDiff(
        first=one,
        second=two,
        come=come,
        gone=gone,
        changed=tuple(changed),
        pages=sum((change.pages for change in changed), PageChanges()),
    )


def _is_same(old: ImageProcess, new: ImageProcess) -> bool:
    """Return whether a PID names the same process, running the same program, in both checkpoints."""
    # The images have no start times, and a restore changes them. But the kernel draws new addresses for a program at
    # each start, and a restore keeps them.
    if old.memory is None or new.memory is None:
        return new.memory is None  # a process may become a zombie, but not the other way round
    one, other = (
        (space.start_code, space.end_code, space.start_brk, space.start_stack) for space in (old.memory, new.memory)
    )
    return one == other


def _describe_unmatched(reading: Reader, process: ImageProcess) -> UnmatchedProcess:
    return UnmatchedProcess(process.pid, process.comm, sum(region.pages for region in Memory(reading, process).regions))


def _change(
    old: ImageProcess, new: ImageProcess, files: tuple[OpenFiles, OpenFiles], maps: tuple[MapChange, ...]
) -> ProcessChange | None:
    """Compare the two states of a process; None if nothing differs."""
    before, after = (
        ProcessFacts(process.comm, process.state, process.ppid, "" if process.exe is None else process.exe.title)
        for process in (old, new)
    )
    threads = [{thread.tid for thread in process.threads} for process in (old, new)]
    change = ProcessChange(
        pid=new.pid,
        comm=new.comm,
        before=before,
        after=after,
        threads_come=tuple(sorted(threads[1] - threads[0])),
        threads_gone=tuple(sorted(threads[0] - threads[1])),
        opened=_only(new, old, files[1]),
        closed=_only(old, new, files[0]),
        maps=maps,
        pages=sum((row.pages for row in maps), PageChanges()),
    )
    differs = before != after or change.threads_come or change.threads_gone or maps
    descriptors = (*change.opened.files, *change.opened.sockets, *change.closed.files, *change.closed.sockets)
    return change if differs or descriptors else None


def _only(process: ImageProcess, other: ImageProcess, files: OpenFiles) -> DescriptorChange:
    """The descriptors that `process` has and `other` lacks."""
    if process.descriptors == other.descriptors:  # usually so, and a process may have 20,000
        return DescriptorChange()
    lacks = {_identity(descriptor) for descriptor in other.descriptors}
    mine = sorted((found for found in process.descriptors if _identity(found) not in lacks), key=lambda found: found.fd)
    sockets = (socket_section(found.file, (Holder(process.pid, found.fd),), files) for found in mine)
    return DescriptorChange(
        files=tuple(file_section(process.pid, found, files) for found in mine if not is_socket(found.file)),
        sockets=tuple(socket for socket in sockets if socket is not None),
    )


def _identity(descriptor: OpenDescriptor) -> tuple[int, str, str]:
    """Return what identifies a descriptor: for sockets not their state; for pipes and nameless sockets their inode."""
    # Not the file's id: CRIU numbers files anew in each dump.
    file = descriptor.file
    if isinstance(file, InetSocket):
        return descriptor.fd, file.kind, f"{file.protocol} {file.source} {file.destination}"
    if isinstance(file, UnixSocket):
        return descriptor.fd, file.kind, f"{file.type} {file.name or file.inode}"
    if isinstance(file, RegularFile):
        return descriptor.fd, file.kind, file.path
    return descriptor.fd, file.kind, file.title


_PackNumbers: TypeAlias = npt.NDArray[np.uint32]


class PageChanges(Struct, frozen=True):
    """Numbers of pages: `changed` in both and different, `new` only in the second, `gone` only in the first."""

    changed: int = 0
    new: int = 0
    gone: int = 0

    def __add__(self, other: PageChanges) -> PageChanges:
        return PageChanges(self.changed + other.changed, self.new + other.new, self.gone + other.gone)

    def __bool__(self) -> bool:
        return bool(self.changed or self.new or self.gone)


class MapChange(Struct, frozen=True):
    """A map that differs, as it is in the second checkpoint; a map that is gone, as it was in the first.

    `start` and `end` (not included) are addresses; `state` is `new`, `gone`, or empty if both have it.
    """

    start: int
    end: int
    permissions: str
    map: str
    state: str
    pages: PageChanges


def number_packs(before: Checkpoint, after: Checkpoint) -> tuple[_PackNumbers, _PackNumbers]:
    """For the packs of each checkpoint, numbers that mean the same pack in both."""
    # Extents name a pack by its position in the manifest.
    known: dict[str, int] = {}
    one, two = ([known.setdefault(use.digest, len(known)) for use in side.packs] for side in (before, after))
    return np.array(one, np.uint32), np.array(two, np.uint32)


def page_changes(before: Memory, after: Memory, numbers: tuple[_PackNumbers, _PackNumbers]) -> tuple[MapChange, ...]:
    """Return the maps of a process that differ, by address. `numbers`: of the packs of both checkpoints.

    A map that grew, shrank or was split is still the same map. Takes bounded memory. Raises IntegrityError.
    """
    old, new = before.regions, after.regions
    overlaps = list(_overlaps(old, new))
    # An old map that was split has several new ones: what is gone of it counts for the first.
    heirs = {left: right for left, right, _, _ in reversed(overlaps)}
    # A row for each new map, then for each old one: pages changed, new, gone. Pages in both are subtracted from the
    # last two.
    counts = np.zeros((len(new) + len(old), 3), np.int64)
    counts[: len(new), 1] = [region.pages for region in new]
    unknown: list[tuple[int, Extents, Extents]] = []
    for left, right, low, high in overlaps:
        one, two = (cut_extents(region.extents, low, high) for region in (old[left], new[right]))
        both, changed, pages = _compare_places(one, two, numbers)
        counts[right, :2] += (changed, -both)
        counts[heirs[left], 2] -= both
        unknown.append((right, *pages))
    for left, region in enumerate(old):
        counts[heirs.get(left, len(new) + left), 2] += region.pages
    # Compare all maps at once: that takes two passes through the store, not two for each map.
    counts[: len(new), 0] += _compare_contents(before, after, unknown, len(new))
    kept = {right for _, right, _, _ in overlaps}
    states = ["" if right in kept else "new" for right in range(len(new))]
    states += ["" if left in heirs else "gone" for left in range(len(old))]
    changes = []
    for region, state, row in zip((*new, *old), states, counts.tolist(), strict=True):
        if state or any(row):
            place = region.vma.start, region.vma.end, region.permissions, region.label
            changes.append(MapChange(*place, state, PageChanges(*row)))
    return tuple(sorted(changes, key=lambda change: (change.start, change.end)))


def _overlaps(old: tuple[Region, ...], new: tuple[Region, ...]) -> Iterator[tuple[int, int, int, int]]:
    """(position of an old map, of a new one, first page, page after the last) of each range that is in both."""
    left = right = 0
    while left < len(old) and right < len(new):
        one, two = old[left].vma, new[right].vma
        low, high = max(one.start, two.start), min(one.end, two.end)
        if low < high and _find_mapped(old[left]) == _find_mapped(new[right]):
            yield left, right, low // PAGE_SIZE, high // PAGE_SIZE
        if one.end <= two.end:
            left += 1
        if two.end <= one.end:
            right += 1


def _find_mapped(region: Region) -> tuple[str, str, bool, int]:
    """Return what is mapped, and which offset of it would be at address 0."""
    vma = region.vma
    return vma.kind, region.path, region.is_shared, vma.start - vma.pgoff if region.path else 0


def _compare_places(
    before: Extents, after: Extents, numbers: tuple[_PackNumbers, _PackNumbers]
) -> tuple[int, int, tuple[Extents, Extents]]:
    """Count the pages that both have, and those that differ for sure, because one of the two is zero.

    Also return the pages that may differ: each extent of the one has a counterpart in the other.
    """
    edges = np.stack((after["first"], after["first"] + after["count"]), axis=1).ravel()
    before, _ = split_extents(before, edges)
    # Each piece lies in one extent of the other side.
    after = find_extents(before, after)[0]
    one, two = (renumber_packs(side, table) for side, table in zip((before, after), numbers, strict=True))
    # The store keeps no page of zeros, so a page that it has is not zero.
    zeros = (before["pack"] == ZERO).astype(np.int8) + (after["pack"] == ZERO)
    same = (zeros == 2) | ((one["pack"] == two["pack"]) & (one["page"] == two["page"]))
    is_unknown = (zeros == 0) & ~same
    both, changed = (int(counts.sum(dtype=np.int64)) for counts in (before["count"], before["count"][zeros == 1]))
    return both, changed, (before[is_unknown], after[is_unknown])


def _compare_contents(
    before: Memory, after: Memory, unknown: list[tuple[int, Extents, Extents]], rows: int
) -> Positions:
    """Read the pages that may be equal, of a row before and after, and count those that differ in each row."""
    one = np.concatenate([np.empty(0, EXTENT), *(old for _, old, _ in unknown)])
    two = np.concatenate([np.empty(0, EXTENT), *(new for *_, new in unknown)])
    ends = extent_ends(one)
    row = np.repeat([at for at, *_ in unknown], [len(old) for _, old, _ in unknown])
    counts = np.zeros(rows, np.int64)
    for first, differ in _differing_pages(before.contents(one), after.contents(two)):
        cells = np.searchsorted(ends, first + np.flatnonzero(differ), side="right")
        counts += np.bincount(row[cells].astype(np.int64), minlength=rows)
    return counts


def _differing_pages(before: Iterator[memoryview], after: Iterator[memoryview]) -> Iterator[tuple[int, Mask]]:
    """(position of a first page, which of the pages after it differ) for two equally long runs of pages."""
    done = 0
    one = two = memoryview(b"")
    # The parts of the two have different sizes: compare what both have, and keep the rest.
    while (one := one or next(before, one)) and (two := two or next(after, two)):
        size = min(len(one), len(two))
        left, right = (np.frombuffer(side[:size], np.uint64).reshape(-1, PAGE_SIZE // 8) for side in (one, two))
        yield done // PAGE_SIZE, (left != right).any(axis=1)
        done, one, two = done + size, one[size:], two[size:]
