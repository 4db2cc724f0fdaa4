"""An action script of CRIU: write to argv[1] the private memory of each process of the frozen tree.

A file for each process, by PID: its maps as (start, end), the content of every page of its own, and the content of the
other pages of maps over a file, as far as they are small.
"""

import array
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PAGE: Final = 4096
ANONYMOUS: Final = ("", "[heap]", "[stack]")
OF_KERNEL: Final = ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]")
SMALL: Final = 128 * PAGE
# Documentation/admin-guide/mm/pagemap.rst
PRESENT, SWAPPED, OF_FILE = 1 << 63, 1 << 62, 1 << 61
KIND: Final = 31
MARK: Final = 31
"""Of what is said to be swapped out the lowest bits tell where to; the last kind is none (include/linux/swap.h)."""


def below(pid: int) -> Iterator[int]:
    """Return a process and all its descendants that have memory."""
    if Path(f"/proc/{pid}/maps").read_bytes():
        yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from below(int(child))


def maps(pid: int) -> Iterator[tuple[int, int, int | None]]:
    """Return start and end, and for maps over a file (hugetlb too) where in it they begin."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        addresses, rights, offset, _, inode, *name = line.split(maxsplit=5)
        called = name[0] if name else ""
        if rights[3] == "p" and called not in OF_KERNEL:
            start, end = (int(part, 16) for part in addresses.split("-"))
            is_anonymous = inode == "0" and (called in ANONYMOUS or called.startswith("[anon:"))
            yield start, end, None if is_anonymous else int(offset, 16)


def is_own(entry: int) -> bool:
    """Return whether the process has its own page. A marker that looks swapped out is none; reading removes it."""
    return not entry & OF_FILE and bool(entry & PRESENT or (entry & SWAPPED and entry & KIND != MARK))


def pages_of(pid: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return the process's own pages, and the file's pages under the others. Missing pages are not touched."""
    own, beneath = {}, {}
    memory, entries = (os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("mem", "pagemap"))
    for start, end, offset in maps(pid):
        others = []
        found = array.array("Q", os.pread(entries, (end - start) // PAGE * 8, start // PAGE * 8))
        for address, entry in zip(range(start, end, PAGE), found, strict=True):
            if is_own(entry):
                own[address] = os.pread(memory, PAGE, address)
            else:
                others.append(address)
        if offset is not None and others and end - start <= SMALL:
            with suppress(OSError), Path(f"/proc/{pid}/map_files/{start:x}-{end:x}").open("rb", buffering=0) as file:
                for address in others:
                    beneath[address] = os.pread(file.fileno(), PAGE, offset + address - start).ljust(PAGE, b"\0")
    os.close(memory)
    os.close(entries)
    return own, beneath


def main() -> None:
    """Examine the tree below CRIU's root."""
    for pid in below(int(os.environ["CRTOOLS_INIT_PID"])):
        with Path(sys.argv[1], str(pid)).open("wb") as file:
            pickle.dump(([one[:2] for one in maps(pid)], *pages_of(pid)), file)


if __name__ == "__main__":
    main()
