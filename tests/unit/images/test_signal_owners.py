"""The process that gets the signals of a descriptor."""

from __future__ import annotations

import pytest
from image_trees import one

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.files import SignalOwner, read_signal_owners
from crckpt.images.wire import BYTES, VARINT, encode

ID, PIPE, OWNER = 7, 18, 4


def file(*owner: tuple[int, int, int]) -> bytes:
    """A files.img with a pipe that has this owner."""
    entry = encode([(1, VARINT, ID), (OWNER, BYTES, encode(owner))])
    return one(magics.FILES, (1, VARINT, 2), (2, VARINT, ID), (PIPE, BYTES, entry))


def test_signal_owner_has_users_and_a_process() -> None:
    owner = ((1, VARINT, 1000), (2, VARINT, 0), (3, VARINT, 9), (4, VARINT, 1), (5, VARINT, 42))
    assert list(read_signal_owners(file(*owner))) == [SignalOwner(ID, 1, 42, (1000, 0))]


def test_descriptors_without_a_signal_owner_have_none_in_the_image() -> None:
    assert list(read_signal_owners(file(*((number, VARINT, 0) for number in range(1, 6))))) == []


def test_damaged_image_is_refused() -> None:
    with pytest.raises(IntegrityError):
        list(read_signal_owners(file((1, VARINT, 1000))[:-1]))
