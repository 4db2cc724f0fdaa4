"""A program that changes its mappings as soon as DIRECTORY/go exists, and checks every page after that.

Usage: changing_memory.py DIRECTORY MEGABYTES. It writes "ready", then "intact" or what is wrong, into
DIRECTORY/report. A second DIRECTORY/go makes it check again, and a child of it, which has touched nothing until then.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PAGE = mmap.PAGESIZE
DONTNEED, FREE, DONTFORK, WIPEONFORK = 4, 8, 10, 18
GUARD_INSTALL, GUARD_REMOVE = 102, 103
MAYMOVE, DONTUNMAP = 1, 4
PRIVATE = 0x22  # with MAP_ANONYMOUS
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = _LIBC.mremap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
for _name in ("munmap", "mlock"):
    getattr(_LIBC, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
for _name in ("madvise", "mprotect"):
    getattr(_LIBC, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

Content = Callable[[int], bytes]


class Area:
    """Pages that nobody else uses, with known content."""

    def __init__(self, number: int, size: int, fixed: int = 0) -> None:
        """Map the area and fill it."""
        self.number, self.size = number, size
        self.at = _LIBC.mmap(fixed or None, size, 3, PRIVATE | (0x10 if fixed else 0), -1, 0)
        self.write("first")

    def write(self, word: str) -> None:
        """Fill the area with new content."""
        for page in range(0, self.size, PAGE):
            self.write_page(page, word)

    def write_page(self, page: int, word: str) -> None:
        """Fill a page."""
        ctypes.memmove(self.at + page, self.content(page, word), PAGE)

    def content(self, page: int, word: str) -> bytes:
        """What a page has; nothing twice, so that nothing is stored once for several."""
        return f"{word} {self.number} {page} ".encode().ljust(64, b".") * (PAGE // 64)

    def find_wrong(self, word: str, at: int = 0) -> str:
        """Name the first page that is not as it should be."""
        for page in range(0, self.size, PAGE):
            found = ctypes.string_at((at or self.at) + page, PAGE)
            wanted = self.content(page, word) if word else bytes(PAGE)
            if found != wanted:
                return f"area {self.number}, page {page // PAGE}, {word or 'zeros'}: {found[:32]!r}\n"
        return ""


def read_page(address: int) -> bytes | None:
    """Read a page of ours; None if it is a guard page."""
    content = ctypes.create_string_buffer(PAGE)
    ours, theirs = ((ctypes.c_size_t * 2)(place, PAGE) for place in (ctypes.addressof(content), address))
    return content.raw if _LIBC.process_vm_readv(os.getpid(), ours, 1, theirs, 1, 0) == PAGE else None


class Guards:
    """Guard pages in every second page of an area, in half of them removed again. Linux before 6.13 has none."""

    def __init__(self, area: Area) -> None:
        """Make the guard pages."""
        self._area, self._kept, self._removed = (
            area,
            range(0, area.size, 4 * PAGE),
            range(2 * PAGE, area.size, 4 * PAGE),
        )
        self._are_there = _LIBC.madvise(area.at, PAGE, GUARD_INSTALL) == 0
        for page in (*self._kept, *self._removed) if self._are_there else ():
            check(_LIBC.madvise(area.at + page, PAGE, GUARD_INSTALL))
        for page in self._removed if self._are_there else ():
            check(_LIBC.madvise(area.at + page, PAGE, GUARD_REMOVE))

    def find_wrong(self) -> str:
        """Name the first page that is not as it should be."""
        for page in range(0, self._area.size, PAGE):
            wanted: bytes | None = self._area.content(page, "first")
            if self._are_there and page in self._removed:
                wanted = bytes(PAGE)
            if self._are_there and page in self._kept:
                wanted = None
            if (found := read_page(self._area.at + page)) != wanted:
                return f"area {self._area.number}, page {page // PAGE}: {found[:32] if found else 'a guard page'!r}\n"
        return ""


class LateChild:
    """A child that checks its memory when it is asked: nothing of it may be read before, so that others fill it."""

    def __init__(self, same: Area, dropped: Area, guards: Guards, own: Area) -> None:
        """Fork the child, which makes guard pages in its area `own`."""
        question, self._asks = os.pipe()
        self._says, answer = os.pipe()
        if os.fork() == 0:
            os.close(self._asks)
            os.close(self._says)
            own_guards = Guards(own)
            while os.read(question, 1):
                wrong = (
                    same.find_wrong("first") + dropped.find_wrong("") + guards.find_wrong() + own_guards.find_wrong()
                )
                os.write(answer, wrong.encode() or b"intact")
            os._exit(0)
        os.close(question)
        os.close(answer)

    def find_wrong(self) -> str:
        """Ask the child for its first wrong page."""
        os.write(self._asks, b"?")
        answer = os.read(self._says, PAGE).decode()
        return "" if answer == "intact" else f"child: {answer}"


def check(result: int) -> None:
    """Raise if a call failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def move(area: Area, size: int, flags: int) -> int:
    """Move an area; return where it was."""
    old: int = area.at
    area.at = _LIBC.mremap(old, area.size, size, flags, None)
    check(area.at + 1 >> 64)
    return old


def change(areas: list[Area]) -> Callable[[], str]:
    """Change all; return what checks it."""
    same, dropped, replaced, moved, kept, wiped, split, written, locked, left, freed, forked, shrunk, guarded, own = (
        areas
    )
    check(_LIBC.madvise(dropped.at, dropped.size, DONTNEED))
    guards = Guards(guarded)
    late = LateChild(same, dropped, guards, own)
    at = replaced.at
    check(_LIBC.munmap(at, replaced.size))
    new = Area(100, replaced.size, at)
    move(moved, 2 * moved.size, MAYMOVE)
    check(_LIBC.madvise(kept.at, kept.size, DONTFORK))
    check(_LIBC.madvise(wiped.at, wiped.size, WIPEONFORK))
    for page in range(0, split.size, 2 * PAGE):
        check(_LIBC.mprotect(split.at + page, PAGE, 1))
    check(_LIBC.mlock(locked.at, locked.size // 4))
    old = move(left, left.size, MAYMOVE | DONTUNMAP)
    check(_LIBC.madvise(freed.at, freed.size, FREE))
    tail = shrunk.size // 2
    check(_LIBC.munmap(shrunk.at + tail, tail))
    shrunk.size = tail
    writer = threading.Thread(target=written.write, args=("second",))
    writer.start()
    child = os.fork()
    if child == 0:
        wrong = "".join(one.find_wrong("first") for one in (same, moved, locked, left, shrunk, split))
        wrong += wiped.find_wrong("") + dropped.find_wrong("") + new.find_wrong("first")
        forked.write("child")
        wrong += forked.find_wrong("child")
        if not wrong and (grandchild := os.fork()) == 0:
            os._exit(len(same.find_wrong("first") + forked.find_wrong("child")) > 0)
        elif not wrong:
            wrong = f"grandchild {status}" if (status := os.waitpid(grandchild, 0)[1]) else ""
        sys.stderr.write(wrong)
        os._exit(len(wrong) > 0)
    forked.write("parent")
    subprocess.run(["/bin/true"], check=True)
    status = os.waitpid(child, 0)[1]
    writer.join()

    is_first = True

    def judge() -> str:
        nonlocal is_first
        wrong = guards.find_wrong() + ("" if is_first else late.find_wrong())
        is_first = False
        wrong += f"child {status}\n" if status else ""
        wrong += "".join(
            one.find_wrong("first") for one in (same, moved, kept, wiped, split, locked, left, shrunk, new, own)
        )
        wrong += dropped.find_wrong("") + written.find_wrong("second") + forked.find_wrong("parent")
        wrong += left.find_wrong("", old)
        pages = {ctypes.string_at(freed.at + page, PAGE)[:32] for page in range(0, freed.size, PAGE)}
        known = {bytes(32), *(freed.content(page, "first")[:32] for page in range(0, freed.size, PAGE))}
        return wrong if pages <= known else f"{wrong}freed: {pages - known}"

    return judge


def main() -> None:
    """Wait, change, check."""
    directory, size = Path(sys.argv[1]), int(sys.argv[2]) << 20
    areas = [Area(number, size // 15 // (4 * PAGE) * 4 * PAGE) for number in range(15)]
    report, go = directory / "report", directory / "go"
    report.write_text("ready")
    judge = None
    while True:
        while not go.exists():
            time.sleep(0.005)
        go.unlink()
        if judge is None:
            judge = change(areas)
        wrong = judge()
        report.write_text(wrong or "intact")


if __name__ == "__main__":
    main()
