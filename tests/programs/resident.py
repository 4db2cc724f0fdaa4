"""Memory whose amount matters: shared since a fork, locked, few pages where huge ones are wanted."""

import argparse
import ctypes
import mmap
import threading
from functools import partial
from pathlib import Path
from typing import NoReturn

from selfcheck import PAGE, Program, digest, fork, pattern

HUGE = 512 * PAGE


def main() -> None:
    """Root and children share memory since the fork, and each has some of its own, of different sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--own", type=int, default=1, help="MiB of memory that the root has for itself")
    parser.add_argument("--children", type=int, nargs="+", default=[3], help="MiB that each of these has")
    options = parser.parse_args()
    common = _filled("common", 8 << 20)
    parts = tuple(f"child-{number}" for number in range(len(options.children)))
    for part, own in zip(parts, options.children, strict=True):
        fork(partial(run, options.workdir, (part,), own << 20, common))
    run(options.workdir, ("", *parts), options.own << 20, common)


def run(workdir: Path, parts: tuple[str, ...], size: int, common: mmap.mmap) -> NoReturn:
    """Be one of the parts: fill own memory, and check all of it at every tick."""
    # What it allocates by the way lies in memory that it has in common, but for what a thread of its own has.
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    program = Program(workdir, parts[0], parts[1:], size)
    areas = {
        "common": common,
        "locked": _locked(),
        "dense": _wants_huge_pages(size + 4 * HUGE, 1),
        "sparse": _wants_huge_pages(size + 6 * HUGE, 512),
    }
    facts = {name: digest(area) for name, area in areas.items()}

    def step() -> None:
        program.facts.update(facts)

    def verify() -> bool:
        found = {name: digest(area) for name, area in areas.items()}
        program.expect(found == facts, f"memory holds {found}, not {facts}")
        return True

    program.run(step, verify)


def _filled(name: str, size: int) -> mmap.mmap:
    area = _anonymous(size)
    area[:] = pattern(name, size)
    return area


def _locked() -> mmap.mmap:
    area = _filled("locked", 16 * PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area))), ctypes.c_size_t(len(area))):
        raise OSError(ctypes.get_errno(), "mlock")
    return area


def _wants_huge_pages(size: int, step: int) -> mmap.mmap:
    """Return memory of which one page in `step` is present before huge pages are requested."""
    area = _anonymous(size)
    for at in range(PAGE, len(area), step * PAGE):
        area[at : at + PAGE] = pattern(f"page {at}", PAGE)
    area.madvise(mmap.MADV_HUGEPAGE)
    return area


def _anonymous(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


main()
