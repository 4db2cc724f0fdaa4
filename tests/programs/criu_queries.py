"""Ask the kernel what CRIU asks, through the libc, and print all results as one JSON object.

Run with crckpt's preload library and without. argv[1] is a directory with a criu.kdat. The bits of another process are
reset last, as CRIU does with a tree's.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Final

PAGE: Final = mmap.PAGESIZE
LIBC: Final = ctypes.CDLL(None, use_errno=True)
SCAN: Final = 0xC0606610
WPALLOWED, WRITTEN, FILE, PRESENT, SWAPPED, PFNZERO, SOFT_DIRTY, GUARD = 1, 2, 4, 8, 16, 32, 128, 256
SOFT_DIRTY_BIT: Final = 1 << 55


def answer(number: int) -> int | str:
    """The result of a call, or the name of its errno."""
    return number if number >= 0 else errno.errorcode[ctypes.get_errno()]


def opened(name: str, *arguments: object) -> int | str:
    """Return whether `name`, one of libc's ways to open, opens this."""
    number = getattr(LIBC, name)(*arguments)
    if number >= 0:
        os.close(number)
    return answer(min(number, 0))


def request(
    start: int, pages: int, regions: ctypes.Array[ctypes.c_uint64], return_mask: int, **asked: int
) -> ctypes.Array[ctypes.c_char]:
    """The argument of PAGEMAP_SCAN for pages that hold something, and are of no kind that is `excluded`."""
    excluded = asked.get("excluded", PFNZERO)
    words = (start, start + pages * PAGE, 0, ctypes.addressof(regions), len(regions) // 3, 0)
    kinds = (excluded, excluded | asked.get("mask", 0), PRESENT | SWAPPED, return_mask)
    packed = struct.pack("<12Q", asked.get("size", 96), asked.get("flags", 0), *words, *kinds)
    return ctypes.create_string_buffer(packed, 96)


def scan(number: int, start: int, pages: int, **asked: int) -> tuple[int | str, list[int]]:
    """What PAGEMAP_SCAN says of these pages, each page's categories."""
    regions = (ctypes.c_uint64 * (3 * 64))()
    return_mask = asked.pop("return_mask", PRESENT | SWAPPED | SOFT_DIRTY)
    count = LIBC.ioctl(number, ctypes.c_ulong(SCAN), request(start, pages, regions, return_mask, **asked))
    kinds = []
    for region in range(max(count, 0)):
        first, last, kind = regions[3 * region : 3 * region + 3]
        kinds += [kind] * ((last - first) // PAGE)
    return answer(count), kinds


def without_files(number: int, start: int, pages: int, room: int, *, by_kernel: bool) -> list[int]:
    """What PAGEMAP_SCAN, asked as CRIU does, says of what is no page of a file; where it ended, too.

    `by_kernel` is what the library is to say, made of what the kernel answers to a call past it.
    """
    regions = (ctypes.c_uint64 * (3 * room))()
    return_mask = PRESENT | SWAPPED | (WPALLOWED | WRITTEN if by_kernel else SOFT_DIRTY)
    buffer = request(start, pages, regions, return_mask, excluded=PFNZERO | FILE)
    if by_kernel:
        count = LIBC.syscall(16, number, ctypes.c_ulong(SCAN), buffer)
        for kind in range(2, 3 * count, 3):
            is_clean = regions[kind] & (WPALLOWED | WRITTEN) == WPALLOWED
            regions[kind] = regions[kind] & (PRESENT | SWAPPED) | (0 if is_clean else SOFT_DIRTY)
    else:
        count = LIBC.ioctl(number, ctypes.c_ulong(SCAN), buffer)
    return [count, *regions[: 3 * max(count, 0)], *struct.unpack_from("<Q", buffer, 32)]


def of_all_kinds(pagemap: int, file: Path) -> dict[str, int]:
    """Of four pages each of registered memory, a private map of a file, and other memory, from each page to each."""
    memory, place = area(12)
    file.write_bytes(b"x" * (4 * PAGE))
    with file.open("r+b") as opened_file:
        LIBC.mmap.restype = ctypes.c_void_p
        fixed = mmap.MAP_PRIVATE | 0x10
        LIBC.mmap(ctypes.c_void_p(place + 4 * PAGE), ctypes.c_size_t(4 * PAGE), 3, fixed, opened_file.fileno(), 0)
    for page in (0, 1, 3, 5, 8, 9, 11):
        memory[page * PAGE] = 1
    of_file = [memory[page * PAGE : page * PAGE + 2] for page in (4, 6)].count(b"xx")
    held = protected(place, 4)
    fcntl.ioctl(held, 0xC018AA06, struct.pack("<3Q", place, 2 * PAGE, 1))
    asked = wrong = found = 0
    for start in range(12):
        for pages in range(1, 13 - start):
            for room in (1, 2, 3, 64):
                there = place + start * PAGE
                ours, its = (without_files(pagemap, there, pages, room, by_kernel=kernel) for kernel in (False, True))
                asked += 1
                wrong += ours != its
                found = max(found, its[0])
    os.close(held)
    return {"asked": asked, "wrong": wrong, "found": found, "of the file": of_file}


def protected(place: int, pages: int) -> int:
    """A userfaultfd that these pages are registered with."""
    number = LIBC.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK | 1)
    fcntl.ioctl(number, 0xC018AA3F, struct.pack("<3Q", 0xAA, 1 | 1 << 12 | 1 << 13 | 1 << 15, 0))
    fcntl.ioctl(number, 0xC020AA00, struct.pack("<4Q", place, pages * PAGE, 2, 0))
    return int(number)


def area(pages: int) -> tuple[mmap.mmap, int]:
    """Fresh pages, and their address."""
    memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def resets_of_another() -> list[int | str]:
    """What came of two resets of a child of ours."""
    child = os.fork()
    if child == 0:
        signal.pause()
    process = os.open(f"/proc/{child}", os.O_RDONLY | os.O_DIRECTORY)
    answers = []
    for _ in range(2):
        clear = LIBC.openat64(process, b"clear_refs", os.O_RDWR)
        answers.append(answer(LIBC.write(clear, b"4", 2)))
        LIBC.close(clear)
    os.close(process)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return answers


def of_another() -> dict[str, object]:
    """Of a child's registered memory, of which pages 1, 2 and 5 were written; and then 3, between scan and reset.

    At last it is not registered any more, as if who had registered it had died.
    """
    memory, place = area(10)
    for page in range(8):
        memory[page * PAGE] = 1
    reading, writing = os.pipe()
    asked_to, asking = os.pipe()
    child = os.fork()
    if child == 0:
        held = protected(place, 10)
        os.write(writing, b".")
        os.read(asked_to, 1)
        os.close(held)
        os.write(writing, b".")
        signal.pause()
    os.read(reading, 1)
    process = os.open(f"/proc/{child}", os.O_RDONLY | os.O_DIRECTORY)
    own = os.open("pagemap", os.O_RDONLY, dir_fd=process)
    regions = (ctypes.c_uint64 * (3 * 64))()
    protecting = request(place, 10, regions, WPALLOWED, flags=1)
    found = [LIBC.syscall(16, own, ctypes.c_ulong(SCAN), protecting)]
    _write_pages(process, place, (1, 2, 5))
    pagemap = LIBC.openat64(process, b"pagemap", os.O_RDONLY)
    results: dict[str, object] = {"first": scan(pagemap, place, 10)}
    _write_pages(process, place, (3,))
    results["second"] = scan(pagemap, place, 10)
    results["in parts"] = [_in_parts(pagemap, place, room) for room in (1, 2, 3)]
    results["read"] = _read_as_criu(child, place, ((0, 1), (4, 2), (7, 2)))
    results["still shared"] = [_frame("self", place, page) == _frame(str(child), place, page) for page in (0, 4, 6)]
    clear = LIBC.openat64(process, b"clear_refs", os.O_RDWR)
    results["reset"] = answer(LIBC.write(clear, b"4", 2))
    found.append(LIBC.syscall(16, own, ctypes.c_ulong(SCAN), request(place, 10, regions, WRITTEN, mask=WRITTEN)))
    results["left"] = [found, [(regions[0] - place) // PAGE, (regions[1] - place) // PAGE]]
    os.write(asking, b".")
    os.read(reading, 1)
    results["not registered"] = _in_parts(pagemap, place, 64)
    for number in (process, own, pagemap, clear, reading, writing, asked_to, asking):
        LIBC.close(number)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    results["read when it has ended"] = _read_as_criu(child, place, ((0, 1),))
    return results


def _read_as_criu(pid: int, place: int, runs: tuple[tuple[int, int], ...]) -> tuple[int | str, list[int]]:
    """What came of reading these runs of pages, each (first, count), with one call; and how each begins."""
    into = ctypes.create_string_buffer(sum(count for _, count in runs) * PAGE)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(into), len(into))
    remote = (ctypes.c_uint64 * (2 * len(runs)))()
    for number, (first, count) in enumerate(runs):
        remote[2 * number : 2 * number + 2] = [place + first * PAGE, count * PAGE]
    found = LIBC.process_vm_readv(pid, local, 1, remote, len(runs), 0)
    return answer(found), [into.raw[at] for at in range(0, max(found, 0), PAGE)]


def _frame(process: str, place: int, page: int) -> int:
    """The physical frame of a page of a process."""
    with Path(f"/proc/{process}/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek((place // PAGE + page) * 8)
        (entry,) = struct.unpack("<Q", pagemap.read(8))
    return int(entry & ((1 << 55) - 1))


def _write_pages(process: int, place: int, pages: tuple[int, ...]) -> None:
    """Write these pages of a process from outside."""
    memory = os.open("mem", os.O_WRONLY, dir_fd=process)
    for page in pages:
        os.pwrite(memory, b"2", place + page * PAGE)
    os.close(memory)


def _in_parts(pagemap: int, place: int, room: int) -> list[int]:
    """Each page's categories, asked for with room for so few regions at a time, each time from where it ended."""
    regions = (ctypes.c_uint64 * (3 * room))()
    kinds: list[int] = []
    at, end = place, place + 10 * PAGE
    while at < end:
        buffer = request(at, (end - at) // PAGE, regions, PRESENT | SWAPPED | SOFT_DIRTY)
        count = LIBC.ioctl(pagemap, ctypes.c_ulong(SCAN), buffer)
        if not 0 <= count <= room:
            return [count]
        for first, last, kind in (regions[3 * number : 3 * number + 3] for number in range(count)):
            kinds += [kind] * ((last - first) // PAGE)
        (at,) = struct.unpack_from("<Q", buffer, 32)
    return kinds


def of_protected(process: int, pagemap: int, memory: mmap.mmap, place: int) -> dict[str, object]:
    """The answers for registered memory."""
    results: dict[str, object] = {}
    results["registered"] = scan(pagemap, place, 8)[1]
    clear = LIBC.openat64(process, b"clear_refs", os.O_RDWR)
    LIBC.write(clear, b"4", 2)
    LIBC.close(clear)
    results["after reset"] = scan(pagemap, place, 8)[1]
    memory[3 * PAGE] = 2
    results["one written"] = scan(pagemap, place, 8)[1]
    results["without soft-dirty"] = scan(pagemap, place, 8, return_mask=PRESENT | GUARD)[1]
    results["flags"] = scan(pagemap, place, 8, flags=1)[0]
    results["size"] = scan(pagemap, place, 8, size=104)[0]
    results["chosen by soft-dirty"] = scan(pagemap, place, 8, mask=SOFT_DIRTY)[0]
    results["asked for written"] = scan(pagemap, place, 8, return_mask=WRITTEN)[0]
    return results


def main() -> None:
    """Ask everything."""
    results: dict[str, object] = {}
    work = Path(sys.argv[1])
    for name in ("open", "open64", "__open_2", "__open64_2"):
        results[f"kdat {name}"] = opened(name, bytes(work / "criu.kdat"), os.O_RDONLY)
    for name in ("openat", "openat64", "__openat_2", "__openat64_2"):
        results[f"kdat {name}"] = opened(name, -100, bytes(work / "criu.kdat"), os.O_RDONLY)
    results["kdat create"] = opened(
        "open64", bytes(work / "criu.kdat.tmp"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600
    )

    LIBC.getenv.restype = ctypes.c_char_p
    results["inherited"] = [name for name in ("PATH", "LD_PRELOAD") if LIBC.getenv(name.encode())]
    process = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    memory, place = area(8)
    clear = LIBC.openat64(process, b"clear_refs", os.O_RDWR)
    results["reset"] = answer(LIBC.write(clear, b"4", 2))
    for what in (b"1", b"44", b"5"):
        results[f"reset {what.decode()}"] = answer(LIBC.write(clear, what, len(what)))
    LIBC.close(clear)

    memory[0] = 1
    pagemap = LIBC.openat64(process, b"pagemap", os.O_RDONLY)
    entry = ctypes.c_uint64()
    for name, more in (("pread64", ()), ("pread", ()), ("__pread64_chk", (8,)), ("__pread_chk", (8,))):
        length = getattr(LIBC, name)(
            pagemap, ctypes.byref(entry), ctypes.c_size_t(8), ctypes.c_long(place // PAGE * 8), *more
        )
        results[f"dirty {name}"] = length == 8 and bool(entry.value & SOFT_DIRTY_BIT)
        entry.value = 0
    for name, more in (("read", ()), ("__read_chk", (8,))):
        os.lseek(pagemap, place // PAGE * 8, os.SEEK_SET)
        length = getattr(LIBC, name)(pagemap, ctypes.byref(entry), ctypes.c_size_t(8), *more)
        results[f"dirty {name}"] = length == 8 and bool(entry.value & SOFT_DIRTY_BIT)
        entry.value = 0

    for page in range(6):
        memory[page * PAGE] = 1
    results["unregistered"] = scan(pagemap, place, 8)[1]
    try:
        held = protected(place, 8)
    except OSError:
        results["protects"] = False
    else:
        results |= of_protected(process, pagemap, memory, place)
        results["of all kinds"] = of_all_kinds(pagemap, work / "mapped")
        results["of another"] = of_another()
        os.close(held)

    # The number of a page map goes over to another file, in a way that nobody sees.
    reading, writing = os.pipe()
    os.dup2(reading, pagemap)
    os.write(writing, bytes(8))
    results["another file of that number"] = os.read(pagemap, 8) == bytes(8)
    (work / "made").unlink(missing_ok=True)
    os.close(os.open(work / "made", os.O_CREAT | os.O_WRONLY, 0o640))
    results["mode"] = (work / "made").stat().st_mode & 0o777
    numbers = [LIBC.openat64(process, b"pagemap", os.O_RDONLY) for _ in range(80)]
    results["at once"] = sum(number >= 0 for number in numbers)
    results["the next"] = answer(min(0, LIBC.openat64(process, b"pagemap", os.O_RDONLY)))
    for number in numbers:
        LIBC.close(number)
    os.close(process)
    results["resets of another"] = resets_of_another()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
