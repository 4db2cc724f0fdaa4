"""Which addresses of a process still belong to which pages of its checkpoint. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Segment(NamedTuple):
    """Addresses `start` to `end` (not included) that had the address `origin` and following in the checkpoint."""

    start: int
    end: int
    origin: int

    def cut(self, start: int, end: int) -> Segment:
        """Return the part between two addresses that lie in it."""
        return Segment(start, end, self.origin + start - self.start)


class Segments:
    """The segments of a process. Neither their addresses nor their origins overlap."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._set(segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._by_start)

    def copy(self) -> Segments:
        """Return the same segments, for a fork of the process."""
        return Segments(self._by_start)

    def find_origin(self, address: int) -> int | None:
        """Find the address that this one had in the checkpoint; None if its content is not that of the checkpoint."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._by_start[at].end:
            return None
        return self._by_start[at].cut(address, self._by_start[at].end).origin

    def locate(self, origin: int, length: int) -> tuple[Segment, ...]:
        """Find where `length` bytes from `origin` on lie now, as far as they are still in the process."""
        end = origin + length
        at = max(0, bisect_right(self._origins, origin) - 1)
        found = []
        while at < len(self._by_origin) and self._by_origin[at].origin < end:
            each = self._by_origin[at]
            away = each.start - each.origin
            first, last = max(origin, each.origin) + away, min(end + away, each.end)
            if first < last:
                found.append(each.cut(first, last))
            at += 1
        return tuple(found)

    def drop(self, start: int, end: int) -> None:
        """Forget these addresses: the program gave their memory back."""
        if start < end:
            self._set(self._without(start, end))

    def move(self, source: int, target: int, length: int) -> None:
        """The program moved these addresses, with their content."""
        taken = [
            each.cut(max(each.start, source), min(each.end, source + length))
            for each in self._by_start
            if each.start < source + length and source < each.end
        ]
        kept = Segments(self._without(source, source + length))
        kept.drop(target, target + length)
        away = target - source
        self._set((*kept, *(Segment(each.start + away, each.end + away, each.origin) for each in taken)))

    def _without(self, start: int, end: int) -> Iterator[Segment]:
        for each in self._by_start:
            if each.end <= start or end <= each.start:
                yield each
                continue
            if each.start < start:
                yield each.cut(each.start, start)
            if end < each.end:
                yield each.cut(end, each.end)

    def _set(self, segments: Iterable[Segment]) -> None:
        self._by_start = sorted(segments)
        self._starts = [each.start for each in self._by_start]
        self._by_origin = sorted(self._by_start, key=lambda each: each.origin)
        self._origins = [each.origin for each in self._by_origin]
