"""Memory of every kind: memfd, shared anonymous, private and shared file maps, and read-only maps."""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
from pathlib import Path
from typing import NoReturn

from selfcheck import PAGE, Program, digest, fork, pattern

LENGTH = 64 * PAGE
QUESTION, ANSWER, ROUNDS = 0, 8, 16


class Maps:
    """All the maps; made before the fork, so that two processes share the shared ones."""

    def __init__(self, workdir: Path) -> None:
        """Map and fill them."""
        content = pattern("file", LENGTH)
        (workdir / "private.bin").write_bytes(content)
        (workdir / "shared.bin").write_bytes(content)
        self.private = _map(workdir / "private.bin", mmap.MAP_PRIVATE)
        self.shared = _map(workdir / "shared.bin", mmap.MAP_SHARED)
        self.file = workdir / "private.bin"
        self.talk = mmap.mmap(-1, LENGTH, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.memfd = os.memfd_create("crckpt-test", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.memfd, LENGTH)
        fcntl.fcntl(self.memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.seen_by_both = mmap.mmap(self.memfd, LENGTH)
        self.seen_by_both[PAGE:] = pattern("memfd", LENGTH - PAGE)
        self.talk[PAGE:] = pattern("anonymous", LENGTH - PAGE)
        self.private[PAGE : 2 * PAGE] = pattern("written", PAGE)
        self.read_only = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.read_only[:] = pattern("read only", 4 * PAGE)
        self.read_only_at = _address(self.read_only)
        _protect_from_writing(self.read_only_at, 4 * PAGE)

    def facts(self) -> dict[str, object]:
        """Return digests of what never changes."""
        return {
            "private": digest(self.private),
            "file": digest(self.file.read_bytes()),
            "shared": digest(self.shared[PAGE:]),
            "anonymous": digest(self.talk[PAGE:]),
            "memfd": digest(self.seen_by_both[PAGE:]),
            "read only": digest(self.read_only),
            "seals": fcntl.fcntl(self.memfd, fcntl.F_GET_SEALS),
        }


def main() -> None:
    """The root asks in shared memory, its child answers there."""
    workdir = Path(sys.argv[1])
    maps = Maps(workdir)
    fork(lambda: child(workdir, maps))
    program = Program(workdir, parts=("child",))
    facts = maps.facts()
    rounds_before: list[int] = []

    def step() -> None:
        for talk in (maps.talk, maps.seen_by_both):
            if _get(talk, QUESTION) == _get(talk, ANSWER):
                _put(talk, QUESTION, _get(talk, QUESTION) + 1)
        _put(maps.shared, 0, program.counter)
        found = struct.unpack("<Q", _first_bytes(workdir / "shared.bin"))[0]
        program.expect(found == program.counter, f"the shared map's file holds {found}, not {program.counter}")
        program.ready = min(_rounds(maps)) > 1
        program.facts.update(facts)

    def verify() -> bool:
        if not rounds_before:
            rounds_before.extend(_rounds(maps))
            found = maps.facts()
            program.expect(found == facts, f"maps hold {found}, not {facts}")
            program.expect(_permissions(maps.read_only_at) == "r--p", "a read-only map may be written")
        return all(now > before + 2 for now, before in zip(_rounds(maps), rounds_before, strict=True))

    program.run(step, verify)


def child(workdir: Path, maps: Maps) -> NoReturn:
    """Answer in both shared areas."""
    program = Program(workdir, "child")

    def step() -> None:
        for talk in (maps.talk, maps.seen_by_both):
            _put(talk, ANSWER, _get(talk, QUESTION))
            _put(talk, ROUNDS, _get(talk, QUESTION))

    program.run(step)


def _rounds(maps: Maps) -> tuple[int, int]:
    return _get(maps.talk, ROUNDS), _get(maps.seen_by_both, ROUNDS)


def _map(path: Path, flags: int) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(fd, LENGTH, flags=flags)
    finally:
        os.close(fd)


def _get(area: mmap.mmap, at: int) -> int:
    (value,) = struct.unpack_from("<Q", area, at)
    return int(value)


def _put(area: mmap.mmap, at: int, value: int) -> None:
    struct.pack_into("<Q", area, at, value)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def _address(area: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def _protect_from_writing(address: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), mmap.PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")


def _permissions(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return permissions
    return "unmapped"


if __name__ == "__main__":
    main()
