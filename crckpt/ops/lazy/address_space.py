"""Fill the missing pages of one process, while it runs and changes its mappings."""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from crckpt.host.proc import procfs
from crckpt.host.syscalls.missing_pages import Changing, HasEnded, Kind, MissingPages
from crckpt.model import PAGE_SIZE
from crckpt.ops.lazy.pages import Piece, ProcessPages
from crckpt.ops.lazy.segments import Segments

# How often, and after how many seconds, it is tried again when the host or the control group has no memory left.
_TRIES: Final = 100
_PAUSE_S: Final = 0.1

# A mapping that a fork's child gets empty: MADV_WIPEONFORK (madvise(2)).
_WIPED: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*\n(?:[A-Z].*\n)*?VmFlags:.* wf\b", re.MULTILINE)


class AddressSpace:
    """One process whose pages are filled, or a child that it forked meanwhile. Several threads may use it.

    Whoever copies pages or reads messages holds the lock: a program that gives memory back waits until its message is
    read, so that no old page can come to where the program has new ones.
    """

    def __init__(
        self,
        pid: int,
        pages: ProcessPages,
        missing: MissingPages,
        segments: Segments,
        forked: Callable[[AddressSpace], None],
        left: set[int] | None = None,
    ) -> None:
        """`pid` is that of the process that was restored, also for its children. `forked` gets each new child.

        `left` are the batches of pages that are not in it yet; None: all.
        """
        self.pid = pid
        self.pages = pages
        self.descriptor = missing.descriptor
        self._missing = missing
        self._segments = segments
        self._forked = forked
        self._faults: list[int] = []
        self._lock = threading.RLock()
        self._left = set(range(pages.batches)) if left is None else left
        self.has_ended = False

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
        self._place(pieces)
        with self._lock, self._ending_noted():
            # While a page was unpacked, the program may have moved it away, or given it back.
            if not pieces or self._segments.find_origin(address) is None:
                self._zero(address)
            if not self.has_ended:
                self._missing.wake(address)

    @property
    def left(self) -> tuple[int, ...]:
        """The batches of pages that are not in it yet."""
        with self._lock:
            return tuple(sorted(self._left))

    def fill(self, batch: int) -> None:
        """Supply a batch of pages, and end if that was the last one. Raises IntegrityError, OSError."""
        if not self.has_ended:
            self._place(self.pages.unpack_batch(batch))
        with self._lock:
            self._left.discard(batch)
            self.close_if_complete()

    def close_if_complete(self) -> None:
        """End if no batch is left."""
        with self._lock:
            if not self._left:
                self.close()

    def _place(self, pieces: Iterable[Piece]) -> None:
        """Copy pages to wherever they belong now, if they are still missing. Raises OSError."""
        for piece in pieces:
            with self._lock, self._ending_noted():
                while not self.has_ended and not self._has_placed(piece):
                    self._read()

    def close(self) -> None:
        """End: all pages are there, or the process has ended."""
        with self._lock:
            self.has_ended = True
            self._missing.close()

    def _has_placed(self, piece: Piece) -> bool:
        """Copy a piece. Return False if the mappings change: then it must be tried again."""
        try:
            for segment in self._segments.locate(piece.origin, piece.length):
                self._copy(segment.start, piece.content + segment.origin - piece.origin, segment.end - segment.start)
        except Changing:
            return False
        return True

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
        while not self.has_ended:
            try:
                self._missing.zero(address)
            except Changing:
                self._read()
            else:
                return

    def _read(self) -> None:
        """Read all messages. The caller has the lock."""
        while not self.has_ended and (messages := self._missing.read()):
            for kind, first, second, third in messages:
                match kind:
                    case Kind.FORK:
                        self._fork(first)
                    case Kind.FAULT:
                        self._faults.append(second)
                    case Kind.MOVE:
                        self._segments.move(first, second, third)
                    case Kind.REMOVE | Kind.UNMAP:
                        self._segments.drop(first, second)

    def _fork(self, descriptor: int) -> None:
        segments = self._segments.copy()
        with suppress(OSError):
            for start, end in _WIPED.findall(procfs.text(f"/proc/{self.pid}/smaps")):
                segments.drop(int(start, 16), int(end, 16))
        missing = MissingPages(descriptor, is_new=False)
        self._forked(AddressSpace(self.pid, self.pages, missing, segments, self._forked, set(self._left)))

    @contextmanager
    def _ending_noted(self) -> Iterator[None]:
        """End if the block finds that the process has ended."""
        try:
            yield
        except HasEnded:
            self.close()
