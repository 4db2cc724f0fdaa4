"""Memory of other processes under write protection, and which of its pages were written."""

from __future__ import annotations

import mmap

from crckpt.helper.calls.remote_calls import take_userfaultfds
from crckpt.host.syscalls.pagemap import find_written, private_anonymous
from crckpt.host.syscalls.userfaultfd import ASYNC_WRITE_PROTECTION, WriteProtection

PAGES = 64


def taken_from(pid: int, features: int = ASYNC_WRITE_PROTECTION) -> WriteProtection:
    """Take a userfaultfd from the process, with which nothing is registered yet."""
    (taken,) = take_userfaultfds([pid])
    assert taken.descriptor >= 0, taken.why
    return WriteProtection(taken.descriptor, features)


def protect_all_maps(pid: int, features: int = ASYNC_WRITE_PROTECTION) -> WriteProtection:
    """Every map registered."""
    protection = taken_from(pid, features)
    for mapping in private_anonymous(pid):
        protection.register(mapping)
    return protection


def pages(pid: int, place: int, count: int = PAGES) -> set[int]:
    """Find which of `count` pages from `place` on are written."""
    rows = find_written(pid, private_anonymous(pid))
    numbers = {page for start, end in rows.tolist() for page in range(start, end, mmap.PAGESIZE)}
    return {page for page in range(count) if place + page * mmap.PAGESIZE in numbers}
