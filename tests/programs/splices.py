"""Move pages from pipes into files as CRIU does, through the libc, and print the result as one JSON object.

Run with crckpt's preload library and without. argv[1] is a directory for the files.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

PAGE: Final = 4096
PAGES: Final = 16  # a pipe's
LIBC: Final = ctypes.CDLL(None, use_errno=True)
LIBC.splice.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
LIBC.splice.restype = ctypes.c_ssize_t
MOVE: Final = 1


def splice(source: int, target: int, pages: int, flags: int = MOVE, place: int | None = None) -> int | str:
    """Return how many bytes were moved, or the name of its errno; `place` is the offset in the target."""
    where = None if place is None else ctypes.byref(ctypes.c_int64(place))
    moved = LIBC.splice(source, None, target, where, pages * PAGE, flags)
    return int(moved) if moved >= 0 else errno.errorcode[ctypes.get_errno()]


def content(first: int) -> bytes:
    """Return the content of a full pipe, with all pages different."""
    return b"".join(bytes([first + number]) * PAGE for number in range(PAGES))


def image(path: Path) -> int:
    """Open a new file as CRIU opens its images."""
    return int(LIBC.openat64(-100, bytes(path), os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600))


def filled(first: int = 0) -> int:
    """Return the reading end of a pipe with this content."""
    reading, writing = os.pipe()
    os.write(writing, content(first))
    os.close(writing)
    return reading


def limited(path: Path) -> list[int | str]:
    """Try with space for three pages and a half: in one call, and page by page."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7 * PAGE // 2, hard))
    answers = []
    for runs in ((PAGES, PAGES), (1,) * 5):
        source = filled()
        target = image(path)
        answers += [splice(source, target, pages) for pages in runs]
        LIBC.close(source)
        LIBC.close(target)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return answers


def main() -> None:
    """Try everything; what the library refuses comes last."""
    results: dict[str, object] = {}
    work = Path(sys.argv[1])
    target = image(work / "pages-1.img")
    runs: list[int | str] = []
    for first in (0, PAGES):
        source = filled(first)
        runs += [splice(source, target, pages) for pages in (1, 3, 1, 11)]
        runs.append(splice(source, target, 1))
        LIBC.close(source)
    results["runs"] = runs
    results["right"] = (work / "pages-1.img").read_bytes() == content(0) + content(PAGES)
    results["no room"] = limited(work / "pages-2.img")
    results["no image of pages"] = splice(filled(), os.open(work / "ghost", os.O_CREAT | os.O_RDWR), 1)
    results["its size"] = (work / "ghost").stat().st_size

    source = filled()
    results["other flags"] = splice(source, target, 1, flags=0)
    results["a place"] = splice(source, target, 1, place=0)
    results["a pipe"] = splice(source, os.pipe()[1], 1)
    results["once more"] = splice(source, target, 1)
    results["held"] = (work / "pages-1.img").stat().st_size // PAGE

    results["of another pipe"] = splice(filled(), target, 1)
    results["to another file"] = splice(source, os.open(work / "other", os.O_CREAT | os.O_RDWR), 1)
    results["goes on"] = splice(source, target, 1)
    LIBC.close(source)
    results["of another pipe of that number"] = splice(os.dup2(filled(), source), target, 1)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
