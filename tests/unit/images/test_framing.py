"""Image files are read as they were written, with extras, and damage is always an IntegrityError."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_trees import image, message

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import Image, read_image, read_single, write_image

PLAIN = (magics.INVENTORY, magics.PSTREE, magics.FILES, magics.STATS, magics.IRMAP_CACHE, 0x12345678)


@given(st.sampled_from(PLAIN), st.lists(st.binary(max_size=50)))
def test_images_without_raw_data_round_trip(magic: int, payloads: Sequence[bytes]) -> None:
    original = image(magic, *((payload, b"") for payload in payloads))
    assert read_image(write_image(original)) == original


def test_magic_numbers_are_those_of_criu() -> None:
    assert write_image(Image(magics.INVENTORY, ())).hex() == "16313158"
    assert write_image(Image(magics.PSTREE, ())).hex() == "19435654" + "30302750"
    assert write_image(Image(magics.STATS, ())).hex() == "40591055" + "06330957"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut short"),
        (b"\x19\x43\x56", "cut short"),
        (b"\x7fELF", "not an image file"),
        (b"\x19\x43\x56\x54" + b"\x16\x31\x31\x58", "do not match"),
        (b"\x40\x59\x10\x55" + b"\x30\x30\x27\x50", "do not match"),
        (b"\x16\x31\x31\x58" + b"\x05\x00\x00\x00abcd", "cut short, 1 bytes are missing at offset 8"),
        (b"\x16\x31\x31\x58" + b"\x05\x00\x00", "cut short"),
        (write_image(image(magics.PIPES_DATA, (message(1, 9), b"too few"))), "cut short, 2 bytes"),
        (write_image(image(magics.PIPES_DATA, (message(1), b""))), "field 2 is missing"),
        (write_image(image(magics.IPCNS_MSG, (message(b"", 5, 2), b"\0\0"))), "cut short inside a message queue"),
    ],
)
def test_damaged_frame_of_an_image_is_reported(data: bytes, why: str) -> None:
    with pytest.raises(IntegrityError, match=rf"some\.img: .*{why}"):
        read_image(data, "some.img")


def test_image_of_another_kind_is_refused() -> None:
    with pytest.raises(IntegrityError, match=r"pstree\.img: magic 0x56303138 instead of 0x50273030"):
        read_image(write_image(Image(magics.FILES, ())), "pstree.img", magics.PSTREE)


@pytest.mark.parametrize("count", [0, 2])
def test_image_of_a_single_record_has_exactly_one(count: int) -> None:
    data = write_image(image(magics.MM, *[(b"", b"")] * count))
    with pytest.raises(IntegrityError, match=rf"mm-1\.img: {count} records instead of one"):
        read_single(data, "mm-1.img", magics.MM)


@given(st.sampled_from(PLAIN), st.binary(max_size=200))
def test_any_bytes_are_an_image_or_an_integrity_error(magic: int, data: bytes) -> None:
    for whole in (data, write_image(Image(magic, ())) + data):
        with contextlib.suppress(IntegrityError):
            read_image(whole)
