"""Writes of a tree reach its file system before another host opens it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from target_processes import StatementRunner

from crckpt.migrate.source.hand_over import write_back

LIBC: Final = ctypes.CDLL(None, use_errno=True)
CACHESTAT: Final = 451  # asm-generic/unistd.h
PAGES: Final = 100


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


def count_unwritten(path: Path) -> int:
    """Count the pages of a file that are not on its disk yet."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pages, everything = _Pages(), _Range(0, 0)
        if LIBC.syscall(CACHESTAT, descriptor, ctypes.byref(everything), ctypes.byref(pages), 0):
            pytest.skip("the kernel cannot count unwritten pages (Linux 6.5)")
        return int(pages.dirty + pages.writeback)
    finally:
        os.close(descriptor)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory on a disk: a tmpfs writes nothing back."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    "statement",
    [
        "held = open(path, 'r+b', 0); held.write(b'x' * {size})",
        "held = open(path, 'ab', 0); held.write(b'x' * {size})",
        "import mmap; file = open(path, 'r+b'); held = mmap.mmap(file.fileno(), {size}); file.close(); "
        "held[:] = b'x' * {size}",
    ],
)
def test_write_back_writes_dirty_pages_to_the_file_system(
    target: StatementRunner, directory: Path, statement: str
) -> None:
    path, size = directory / "data", PAGES * os.sysconf("SC_PAGESIZE")
    path.write_bytes(bytes(size))
    target.do(f"path = {str(path)!r}; {statement.format(size=size)}")
    write_back([target.pid], {path.stat().st_dev})
    assert count_unwritten(path) == 0


def test_program_may_change_its_files_while_they_are_written_back(target: StatementRunner, directory: Path) -> None:
    """The program puts other files and FIFOs at the same descriptor: nothing blocks or fails."""
    target.do(
        f"""
import os, threading
files = [os.open({str(directory)!r} + '/' + name, os.O_RDWR | os.O_CREAT) for name in 'ab']
os.mkfifo({str(directory)!r} + '/fifo')
files.append(os.open({str(directory)!r} + '/fifo', os.O_RDWR))
held = os.dup(files[0])
def change():
    while True:
        for each in files: os.write(each, b'x') if each != files[2] else None; os.dup2(each, held)
threading.Thread(target=change, daemon=True).start()
"""
    )
    for _ in range(200):
        write_back([target.pid], {directory.stat().st_dev})


def test_files_that_need_no_write_back_are_left_alone(target: StatementRunner, directory: Path) -> None:
    path = directory / "data"
    target.do(f"held = open({str(path)!r}, 'wb', 0); held.write(b'x'); import os; os.unlink({str(path)!r})")
    write_back([target.pid], {path.parent.stat().st_dev})
    write_back([target.pid], set())
