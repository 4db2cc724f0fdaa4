"""Fill the missing pages of one process, while it runs and changes its mappings."""

from __future__ import annotations

import errno
import re
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

from crckpt.host.proc import procfs
from crckpt.host.process.signals import start_thread
from crckpt.host.syscalls.userfaultfd import Changing, HasEnded, Kind, MissingPages, has_guard_pages
from crckpt.model import PAGE_SIZE
from crckpt.ops.lazy.page_marks import MarksFinder, PageMarks
from crckpt.ops.lazy.pages import Piece, ProcessPages
from crckpt.ops.lazy.plan import Range


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


class Batches:
    """The batches that are `left` to fill of a process, in the order in which they are claimed."""

    def __init__(self, left: Iterable[int]) -> None:
        self._left = deque(left)
        self._claimed: set[int] = set()

    def copy(self) -> Batches:
        """Return those that a fork of the process lacks: claimed ones may be incomplete there."""
        return Batches((*self._claimed, *self._left))

    @property
    def are_complete(self) -> bool:
        """Whether none is left."""
        return not self._left and not self._claimed

    def claim(self) -> int | None:
        """Take the next one to fill; None if there is none."""
        if not self._left:
            return None
        batch = self._left.popleft()
        self._claimed.add(batch)
        return batch

    def finish(self, batch: int) -> None:
        """A claimed one is in the process."""
        self._claimed.remove(batch)


# How often, and after how many seconds, it is tried again when the host or the control group has no memory left.
_TRIES: Final = 100
_PAUSE_S: Final = 0.1

# A mapping that a fork's child gets empty: MADV_WIPEONFORK (madvise(2)).
_WIPED: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*\n(?:[A-Z].*\n)*?VmFlags:.* wf\b", re.MULTILINE)


class FilledSpace:
    """One process whose pages are filled, or a child that it forked meanwhile. Several threads may use it.

    Whoever copies pages or reads messages holds the lock: a program that gives memory back waits until its message is
    read, so that no old page can come to where the program has new ones. Where the kernel has guard pages, only pages
    with a mark are filled: see `page_marks`.
    """

    def __init__(
        self,
        pid: int,
        pages: ProcessPages,
        missing: MissingPages,
        segments: Segments,
        finder: MarksFinder,
        add_child: Callable[[FilledSpace], object],
        batches: Batches | None = None,
        unpin: Callable[[], None] | None = None,
    ) -> None:
        """`pid` is that of the restored process, also for children; `batches` are those of a child.

        `finder` finds the marks of children. `add_child` is called with each, which is to be filled, too.
        """
        self.pid = pid
        self.pages = pages
        self.descriptor = missing.descriptor
        self._missing = missing
        self._segments = segments
        self._finder = finder
        self._add_child = add_child
        self._faults: list[int] = []
        self._lock = threading.RLock()
        self.is_child = batches is not None
        self._batches = Batches(range(pages.batches)) if batches is None else batches
        self._unpin = unpin
        self._is_closing = False
        self.has_ended = False
        self._has_marks = has_guard_pages()
        self._marks: PageMarks | None = None
        if self._has_marks and not self.is_child:
            self._marks = PageMarks(pid)
            self._marks.set_on(missing, ((each.start, each.end) for each in segments))

    @property
    def unmarked_ranges(self) -> tuple[Range, ...]:
        """The ranges that may be missing in a child whose marks must be found before it can be filled."""
        with self._lock:
            if self.has_ended or self._marks is not None or not self._has_marks:
                return ()
            return tuple((each.start, each.end) for each in self._segments)

    def take_faults(self) -> list[int]:
        """Read the messages, and return the addresses of pages that threads wait for."""
        with self._lock:
            self._read()
            found, self._faults = self._faults, []
        return found

    def resolve(self, address: int) -> None:
        """Supply the page at this address, and what lies next to it in the store. Raises IntegrityError, OSError."""
        address -= address % PAGE_SIZE
        with self._lock:
            origin = self._segments.find_origin(address)
        pieces = () if origin is None else tuple(self.pages.unpack_at(origin))
        with self._lock, self._ending_noted():
            if self._has_marks:
                # A page without a mark is one that the program has dropped.
                self._zero(address)
            self._place(pieces, address)
            # While a page was unpacked, the program may have moved it away, or given it back.
            if not pieces or self._segments.find_origin(address) is None:
                if self._has_marks:
                    self._repeat(lambda: self._missing.mark(address, address + PAGE_SIZE, is_set=False))
                self._zero(address)
            if not self.has_ended:
                self._missing.wake(address)

    def fill_next(self) -> bool:
        """Supply a batch, and end after the last. Return False if there was none. Raises IntegrityError, OSError."""
        with self._lock:
            batch = None if self.has_ended else self._batches.claim()
        if batch is None:
            self.close_if_complete()
            return False
        if not self.end_if_over():
            self._place(self.pages.unpack_batch(batch))
        with self._lock:
            self._batches.finish(batch)
            self.close_if_complete()
        return True

    def close_if_complete(self) -> None:
        """End if no batch is left."""
        with self._lock:
            if self._batches.are_complete and not self._is_closing:
                self._is_closing = True
                if self._unpin is None:
                    self.close()
                else:
                    start_thread(partial(self._unpin_and_close, self._unpin))

    def _unpin_and_close(self, unpin: Callable[[], None]) -> None:
        # The lock is free: until this is done, the program may fork and change its mappings.
        unpin()
        self.close()

    def end_if_over(self) -> bool:
        """Return whether it has ended, which the kernel does not report."""
        # Whoever has the lock may be adding a child, and look at all others: do not wait for it.
        if self._lock.acquire(blocking=False):
            try:
                if not self.has_ended and self._missing.has_ended():
                    self.close()
            finally:
                self._lock.release()
        return self.has_ended

    def close(self) -> None:
        """End: all pages are there, or the process has ended."""
        with self._lock:
            self.has_ended = True
            self._missing.close()
            if self._marks is not None:
                self._marks.close()
                self._marks = None

    def _place(self, pieces: Iterable[Piece], fault: int | None = None) -> None:
        """Copy pages to wherever they belong now, if they are still missing. Raises OSError."""
        for piece in pieces:
            with self._lock, self._ending_noted():
                self._repeat(partial(self._place_piece, piece, fault))

    def _place_piece(self, piece: Piece, fault: int | None) -> None:
        for segment in self._segments.locate(piece.origin, piece.length):
            missing: tuple[Range, ...] = ()
            if not self._has_marks:
                missing = ((segment.start, segment.end),)
            elif self._marks is not None:
                missing = tuple(self._marks.find(segment.start, segment.end))
            elif fault is not None and segment.start <= fault < segment.end:
                missing = ((fault, fault + PAGE_SIZE),)
            content = piece.content + segment.origin - piece.origin
            for start, end in missing:
                self._copy(start, content + start - segment.start, end - start)

    def _repeat(self, change: Callable[[], object]) -> None:
        """Change the process. While it changes its mappings, read its messages."""
        while not self.has_ended:
            try:
                change()
            except Changing:
                self._read()
            else:
                return

    def _copy(self, address: int, content: int, length: int) -> None:
        done = 0
        while done < length:
            copied, why = self._copy_some(address + done, content + done, length - done)
            if why == errno.ENOENT and length - done > PAGE_SIZE:
                # The program has split the mapping (mprotect): each half may lie in one.
                half = (length - done) // 2 // PAGE_SIZE * PAGE_SIZE
                self._copy(address + done, content + done, half)
                copied = half
            elif why:
                # It is there already; or, ENOENT, not in a forked child (MADV_DONTFORK).
                copied = PAGE_SIZE
            done += copied

    def _copy_some(self, address: int, content: int, length: int) -> tuple[int, int]:
        for _ in range(_TRIES):
            try:
                return self._missing.copy(address, content, length)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
            time.sleep(_PAUSE_S)
        raise OSError(errno.ENOMEM, f"no memory is left for process {self.pid}")

    def _zero(self, address: int) -> None:
        self._repeat(lambda: self._missing.zero(address))

    def _read(self) -> None:
        while not self.has_ended and (messages := self._missing.read()):
            for kind, first, second, third in messages:
                match kind:
                    case Kind.FORK:
                        segments = self._segments.copy()
                        with suppress(OSError):
                            for start, end in _WIPED.findall(procfs.text(f"/proc/{self.pid}/smaps")):
                                segments.drop(int(start, 16), int(end, 16))
                        missing, batches = MissingPages(first, is_new=False), self._batches.copy()
                        add, finder = self._add_child, self._finder
                        add(FilledSpace(self.pid, self.pages, missing, segments, finder, add, batches))
                    case Kind.FAULT:
                        self._faults.append(second)
                        if self._marks is None:
                            self._marks = self._finder.answer(third, second)
                    case Kind.MOVE:
                        self._segments.move(first, second, third)
                    case Kind.REMOVE | Kind.UNMAP:
                        self._segments.drop(first, second)

    @contextmanager
    def _ending_noted(self) -> Iterator[None]:
        """End if the block finds that the process has ended."""
        try:
            yield
        except HasEnded:
            self.close()
