"""Asynchronous write protection, on memory of our own."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_process import descriptors
from target_processes import NO_WRITE_PROTECTION, is_registered

from crckpt.errors import HostCannot
from crckpt.host.syscalls.libc import syscall
from crckpt.host.syscalls.pagemap import AddressRange
from crckpt.host.syscalls.userfaultfd import USER_MODE_ONLY, WriteProtection

pytestmark = pytest.mark.skipif(bool(NO_WRITE_PROTECTION), reason=NO_WRITE_PROTECTION or "it works")

PAGES = 4


@pytest.fixture
def memory() -> Iterator[AddressRange]:
    """Some pages."""
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as found:
        for page in range(PAGES):
            found[page * mmap.PAGESIZE] = 1
        reference = ctypes.c_char.from_buffer(found)
        start = ctypes.addressof(reference)
        yield AddressRange(start, start + len(found))
        del reference


def open_descriptor() -> int:
    return syscall("userfaultfd", os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY)


@pytest.fixture
def protection() -> Iterator[WriteProtection]:
    made = WriteProtection(open_descriptor())
    yield made
    made.close()


def test_mapping_is_tracked_until_unregistered(memory: AddressRange, protection: WriteProtection) -> None:
    assert not is_registered(os.getpid(), memory.start)
    protection.register(memory)
    assert is_registered(os.getpid(), memory.start)
    protection.remove(memory.start, memory.end)
    assert not is_registered(os.getpid(), memory.start)


def test_closing_the_userfaultfd_ends_the_tracking(memory: AddressRange) -> None:
    before = descriptors()
    protection = WriteProtection(open_descriptor())
    protection.register(memory)
    was_open = protection.is_open
    protection.close()
    protection.close()
    assert (was_open, protection.is_open) == (True, False)
    assert not is_registered(os.getpid(), memory.start)
    assert descriptors() == before


def test_mapping_tracked_by_another_userfaultfd_is_reported_as_busy(
    memory: AddressRange, protection: WriteProtection
) -> None:
    other = WriteProtection(open_descriptor())
    other.register(memory)
    with pytest.raises(OSError, match="busy") as refused:
        protection.register(memory)
    assert refused.value.errno == errno.EBUSY
    assert is_registered(os.getpid(), memory.start)
    other.close()
    protection.register(memory)


def test_tracking_a_mapping_that_does_not_exist_is_an_error(protection: WriteProtection) -> None:
    with pytest.raises(OSError, match=r"Invalid argument|Cannot allocate memory|No such file"):
        protection.register(AddressRange(1 << 40, (1 << 40) + mmap.PAGESIZE))


def test_userfaultfd_of_crckpt_is_recognized_by_its_descriptor(protection: WriteProtection) -> None:
    ours = next(int(path.name) for path in descriptors() if "userfaultfd" in str(_target(path)))
    other = os.eventfd(0)
    assert protection.is_held_by(os.getpid(), ours)
    assert not protection.is_held_by(os.getpid(), other)
    os.close(other)
    protection.close()
    assert not protection.is_held_by(os.getpid(), ours)


def _target(path: Path) -> str:
    return str(path.readlink()) if path.is_symlink() else ""


def test_descriptor_that_is_no_suitable_userfaultfd_is_closed() -> None:
    descriptor = os.eventfd(0)
    before = descriptors()
    with pytest.raises(HostCannot, match="this kernel cannot track writes by userfaultfd: ") as refused:
        WriteProtection(descriptor)
    assert refused.value.hint == "use Linux 6.7 or later"
    assert len(descriptors()) == len(before) - 1
