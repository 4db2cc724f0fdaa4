"""filelocks.img: the locks of a tree."""

from __future__ import annotations

import pytest
from image_trees import one

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.processes import FileLock, read_locks
from crckpt.images.wire import VARINT


def _image(kind: int, access: int, start: int, length: int) -> bytes:
    values = (kind, access, 42, 3, start, length)
    return one(magics.FILE_LOCKS, *((number, VARINT, value) for number, value in enumerate(values, 1)))


@pytest.mark.parametrize(
    ("image", "lock"),
    [
        (_image(1, 1, 5, 10), FileLock("POSIX", True, 42, 3, 5, 14)),
        (_image(1, 0, 5, 0), FileLock("POSIX", False, 42, 3, 5, None)),
        (_image(2, 1, 0, 0), FileLock("flock", True, 42, 3, 0, None)),
        (_image(4, 0, 0, 1), FileLock("OFD", False, 42, 3, 0, 0)),
    ],
)
def test_kinds_and_ranges_of_locks_are_read(image: bytes, lock: FileLock) -> None:
    assert read_locks(image) == (lock,)


def test_lease_in_the_image_of_locks_is_not_read_as_a_lock() -> None:
    assert read_locks(_image(16, 1, 0, 0)) == ()


def test_lock_without_a_range_is_damage() -> None:
    with pytest.raises(IntegrityError, match=r"filelocks\.img: field 2 is missing"):
        read_locks(one(magics.FILE_LOCKS, (1, VARINT, 1)))
