"""Marks of trees whose memory is being filled."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from crckpt.host.disk.own_files import runtime_directory
from crckpt.host.proc import Identity, identify
from crckpt.ops.lazy.family import is_unfilled, open_mark, remove_mark, wait_until_released

ROOTS = tuple(Identity("", (1 << 30) + number, 77) for number in range(4))
ROOT = ROOTS[0]


@pytest.fixture
def marks() -> Path:
    """The directory of the marks: other tests may have some in it."""
    return runtime_directory() / "filling"


def test_next_fill_helper_removes_the_mark_of_a_killed_one(marks: Path) -> None:
    killed, failed, living = (marks / root.name for root in ROOTS[:3])
    os.close(open_mark(ROOT))
    reason = open_mark(ROOTS[1])
    os.write(reason, b"there was damage\n")
    os.close(reason)
    held = open_mark(ROOTS[2])
    new = open_mark(ROOTS[3])
    try:
        assert not killed.exists()
        assert failed.read_text() == "there was damage\n"
        assert living.exists()
    finally:
        for root in ROOTS:
            remove_mark(root)
        os.close(held)
        os.close(new)


def test_mark_of_an_incompletely_filled_tree_stays_while_it_lives(marks: Path) -> None:
    """The helper was killed, and the mark records the lost memory."""
    us = identify(os.getpid())
    assert us is not None
    os.close(open_mark(us))
    new = open_mark(ROOT)
    try:
        assert (marks / us.name).exists()
        assert is_unfilled(us)
    finally:
        remove_mark(us)
        remove_mark(ROOT)
        os.close(new)


def test_mark_removed_before_it_is_locked_is_created_again(marks: Path) -> None:
    """Another helper holds the lock of the mark, and takes the mark for that of a dead helper."""
    path = marks / ROOT.name
    first = open_mark(ROOT)
    opened: list[int] = []
    thread = threading.Thread(target=lambda: opened.append(open_mark(ROOT)))
    thread.start()
    try:
        while not _is_waited_for(path):
            thread.join(0.01)
        remove_mark(ROOT)
        os.close(first)
        thread.join()
        assert os.path.samestat(os.fstat(opened[0]), path.stat())
        with pytest.raises(BlockingIOError):
            _lock(path)
        os.close(opened[0])
        wait_until_released(ROOT)
    finally:
        remove_mark(ROOT)


def _is_waited_for(path: Path) -> bool:
    """Whether a process waits for the lock on a file, as /proc/locks shows it."""
    inode = path.stat().st_ino
    return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def _lock(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
