"""Find the pages of a process that still have the mark of a missing page: /proc/PID/pagemap shows it.

A page loses its mark when it is filled, and when the program makes a guard page there or drops it. Source:
Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from crckpt.host.proc import Identity, procfs
from crckpt.host.syscalls.process_vm import touch_memory
from crckpt.host.syscalls.userfaultfd import MissingPages
from crckpt.model import PAGE_SIZE
from crckpt.ops.lazy.family import Family
from crckpt.ops.lazy.plan import Range

_ENTRY: Final = 8
# Bits of an entry from 57 on: the mark (of write protection), a guard page, swapped (which the kernel says of a missing
# page with a mark, too), present.
_FIRST_BIT: Final = 57
_MARK: Final = 1 << 0
_GUARD: Final = 1 << 1
_SWAPPED: Final = 1 << 5
_PRESENT: Final = 1 << 6
# Addresses whose entries are read at once.
_PIECE: Final = 256 << 20
_PATIENCE_S: Final = 0.2
# So long after it has answered for another page is a child asked again; each time twice as long.
_FIRST_PAUSE_S: Final = 0.02
# Threads that wait for an answer, perhaps for ever.
_MOST_QUESTIONS: Final = 32


class PageMarks:
    """The marks of one process."""

    def __init__(self, pid: int, tid: int = 0) -> None:
        """Open the page map of a process, or of its thread. Raises OSError."""
        self._descriptor = os.open(f"/proc/{pid}/task/{tid or pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the page map."""
        os.close(self._descriptor)

    def set_on(self, missing: MissingPages, ranges: Iterable[Range]) -> None:
        """Mark the pages of these ranges that are missing, while nothing runs in the process. Raises OSError."""
        for start, end in ranges:
            for first, last in tuple(self._find(start, end, _MARK | _GUARD | _SWAPPED | _PRESENT, 0)):
                missing.mark(first, last)

    def find(self, start: int, end: int) -> Iterator[Range]:
        """Find the pages that have the mark; none after the process has ended. Raises OSError."""
        return self._find(start, end, _MARK | _PRESENT, _MARK)

    def _find(self, start: int, end: int, mask: int, wanted: int) -> Iterator[Range]:
        for first in range(start, end, _PIECE):
            length = (min(first + _PIECE, end) - first) // PAGE_SIZE * _ENTRY
            entries = np.frombuffer(os.pread(self._descriptor, length, first // PAGE_SIZE * _ENTRY), np.uint64)
            found = (entries >> np.uint64(_FIRST_BIT)) & np.uint64(mask) == wanted
            edges = np.flatnonzero(np.diff(found, prepend=False, append=False)) * PAGE_SIZE + first
            yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


class MarksFinder:
    """Finds the marks of forked children: the kernel gives us the userfaultfd of each, but no PID.

    A thread reads a missing page of a process that may be such a child. The userfaultfd that reports the thread is that
    of this process.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._known = frozenset(family.tasks)
        # When each may be asked again, and how long it waits after that.
        self._pauses: dict[Identity, tuple[float, float]] = {}
        # By thread of ours: it reads the page at this address of the process with these marks.
        self._questions: dict[int, tuple[int, PageMarks]] = {}
        self._lock = threading.Lock()

    def answer(self, tid: int, address: int) -> PageMarks | None:
        """Return the marks of the process in which this thread waits for a page, if it is ours."""
        with self._lock:
            question = self._questions.get(tid)
            if question is None or question[0] != address // PAGE_SIZE * PAGE_SIZE:
                return None
            return self._questions.pop(tid)[1]

    def ask(self, ranges: tuple[Range, ...]) -> None:
        """Ask each new process of the family that has marks in one of the ranges."""
        children = {*self._family.find_living()} - self._known
        self._pauses = {process: pause for process, pause in self._pauses.items() if process in children}
        for process in sorted(children, key=lambda each: each.pid):
            until, pause = self._pauses.get(process, (0.0, _FIRST_PAUSE_S))
            if time.monotonic() < until or len(self._questions) >= _MOST_QUESTIONS:
                continue
            with suppress(OSError):
                # The main thread may have ended before others.
                for tid in procfs.threads(process.pid):
                    marks = PageMarks(process.pid, tid)
                    address = next((first for each in ranges for first, _ in marks.find(*each)), None)
                    if address is None:
                        marks.close()
                        continue
                    asking = threading.Thread(target=self._ask, args=(process, tid, address, marks), daemon=True)
                    asking.start()
                    asking.join(_PATIENCE_S)
                    # It may wait for ever, for a userfaultfd of the program's own.
                    until = math.inf if asking.is_alive() else time.monotonic() + pause
                    self._pauses[process] = (until, 2 * pause)
                    break

    def _ask(self, process: Identity, tid: int, address: int, marks: PageMarks) -> None:
        us = threading.get_native_id()
        with self._lock:
            self._questions[us] = address, marks
        # Since the page map was opened, no other process can have got the PID; one that runs another program has no
        # missing pages.
        if process.keeps_pid:
            touch_memory(tid, address)
        with self._lock:
            if self._questions.pop(us, None) is not None:
                # It was no missing page of ours any more.
                marks.close()
