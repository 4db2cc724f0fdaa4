"""Image files are read as they were written, with extras, and damage is always an IntegrityError."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crckpt.errors import IntegrityError
from crckpt.images import magics, wire
from crckpt.images.framing import Image, Record, read_image, read_single, write_image

PLAIN = (magics.INVENTORY, magics.PSTREE, magics.FILES, magics.STATS, magics.IRMAP_CACHE, 0x12345678)


def message(*values: int | bytes) -> bytes:
    """Make a message with `values` as fields 1, 2 ..."""
    kinds = ((wire.BYTES if isinstance(value, bytes) else wire.VARINT) for value in values)
    return wire.encode(zip(range(1, len(values) + 1), kinds, values, strict=True))


def image(magic: int, *records: tuple[bytes, bytes]) -> Image:
    """Make an image with these payloads and extras."""
    return Image(magic, tuple(Record(payload, extra) for payload, extra in records))


@given(st.sampled_from(PLAIN), st.lists(st.binary(max_size=50)))
def test_images_without_extras_round_trip(magic: int, payloads: Sequence[bytes]) -> None:
    whole = image(magic, *((payload, b"") for payload in payloads))
    assert read_image(write_image(whole)) == whole


@given(
    st.sampled_from((magics.PIPES_DATA, magics.FIFO_DATA, magics.SK_QUEUES)),
    st.lists(st.binary(max_size=99), max_size=5),
)
def test_data_in_flight_round_trips(magic: int, data: Sequence[bytes]) -> None:
    whole = image(magic, *((message(77, len(extra)), extra) for extra in data))
    assert read_image(write_image(whole)) == whole


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_tcp_queues_and_bpf_maps_round_trip(first: bytes, second: bytes) -> None:
    tcp = image(magics.TCP_STREAM, (message(len(first), 1000, len(second)), first + second))
    bpf = image(magics.BPFMAP_DATA, (message(1, len(first), len(second), 1), first + second))
    assert read_image(write_image(tcp)) == tcp
    assert read_image(write_image(bpf)) == bpf


@given(st.binary(max_size=200))
def test_a_ghost_in_one_piece_round_trips(content: bytes) -> None:
    whole = image(magics.GHOST_FILE, (message(0, 0, 0o100600), content))
    assert read_image(write_image(whole)) == whole


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=4))
def test_a_ghost_in_chunks_round_trips(chunks: Sequence[bytes]) -> None:
    head = message(0, 0, 0o100600) + wire.encode([(9, wire.VARINT, 1), (10, wire.VARINT, 4096)])
    whole = image(magics.GHOST_FILE, (head, b""), *((message(len(chunk), 0), chunk) for chunk in chunks))
    assert read_image(write_image(whole)) == whole


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_system_v_message_queues_round_trip(texts: Sequence[bytes]) -> None:
    def one(text: bytes) -> bytes:
        body = message(1, len(text))
        return len(body).to_bytes(4, "little") + body + text + bytes(-len(text) % 8)

    queue = (message(b"", sum(map(len, texts)), len(texts)), b"".join(map(one, texts)))
    whole = image(magics.IPCNS_MSG, queue, queue)
    assert read_image(write_image(whole)) == whole


@pytest.mark.parametrize("semaphores", [0, 1, 4, 5])
def test_system_v_semaphores_are_padded_to_eight_bytes(semaphores: int) -> None:
    extra = bytes(-(-2 * semaphores // 8) * 8)
    whole = image(magics.IPCNS_SEM, (message(b"", semaphores), extra), (message(b"", 0), b""))
    assert read_image(write_image(whole)) == whole


def test_system_v_segments_lie_in_page_maps_or_in_the_image() -> None:
    whole = image(magics.IPCNS_SHM, (message(b"", 5, 1), b""), (message(b"", 5), bytes(8)))
    assert read_image(write_image(whole)) == whole


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
        (b"\x19\x43\x56\x54" + b"\x16\x31\x31\x58", "do not go together"),
        (b"\x40\x59\x10\x55" + b"\x30\x30\x27\x50", "do not go together"),
        (b"\x16\x31\x31\x58" + b"\x05\x00\x00\x00abcd", "cut short, 1 bytes are missing at offset 8"),
        (b"\x16\x31\x31\x58" + b"\x05\x00\x00", "cut short"),
        (write_image(image(magics.PIPES_DATA, (message(1, 9), b"too few"))), "cut short, 2 bytes"),
        (write_image(image(magics.PIPES_DATA, (message(1), b""))), "field 2 is missing"),
        (write_image(image(magics.IPCNS_MSG, (message(b"", 5, 2), b"\0\0"))), "cut short inside a message queue"),
    ],
)
def test_damage_is_named(data: bytes, why: str) -> None:
    with pytest.raises(IntegrityError, match=rf"some\.img: .*{why}"):
        read_image(data, "some.img")


def test_an_image_of_another_kind_is_refused() -> None:
    with pytest.raises(IntegrityError, match=r"pstree\.img: magic 0x56303138 instead of 0x50273030"):
        read_image(write_image(Image(magics.FILES, ())), "pstree.img", magics.PSTREE)


@pytest.mark.parametrize("count", [0, 2])
def test_an_image_of_one_record_has_exactly_one(count: int) -> None:
    data = write_image(image(magics.MM, *[(b"", b"")] * count))
    with pytest.raises(IntegrityError, match=rf"mm-1\.img: {count} records instead of one"):
        read_single(data, "mm-1.img", magics.MM)


@given(st.sampled_from(PLAIN), st.binary(max_size=200))
def test_any_bytes_are_an_image_or_an_integrity_error(magic: int, data: bytes) -> None:
    for whole in (data, write_image(Image(magic, ())) + data):
        with contextlib.suppress(IntegrityError):
            read_image(whole)
