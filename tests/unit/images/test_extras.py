"""Raw bytes after the records of images: each kind encodes their size differently."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_trees import image, message

from crckpt.errors import IntegrityError
from crckpt.images import magics, wire
from crckpt.images.framing import read_image, write_image


@given(
    st.sampled_from((magics.PIPES_DATA, magics.FIFO_DATA, magics.SK_QUEUES)),
    st.lists(st.binary(max_size=99), max_size=5),
)
def test_image_with_raw_data_after_its_records_round_trips(magic: int, data: Sequence[bytes]) -> None:
    original = image(magic, *((message(77, len(extra)), extra) for extra in data))
    assert read_image(write_image(original)) == original


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_tcp_queues_and_bpf_maps_round_trip(first: bytes, second: bytes) -> None:
    tcp = image(magics.TCP_STREAM, (message(len(first), 1000, len(second)), first + second))
    bpf = image(magics.BPFMAP_DATA, (message(1, len(first), len(second), 1), first + second))
    assert read_image(write_image(tcp)) == tcp
    assert read_image(write_image(bpf)) == bpf


@given(st.binary(max_size=200))
def test_ghost_file_in_one_piece_round_trips(content: bytes) -> None:
    original = image(magics.GHOST_FILE, (message(0, 0, 0o100600), content))
    assert read_image(write_image(original)) == original


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=4))
def test_ghost_file_in_chunks_round_trips(chunks: Sequence[bytes]) -> None:
    head = message(0, 0, 0o100600) + wire.encode([(9, wire.VARINT, 1), (10, wire.VARINT, 4096)])
    original = image(magics.GHOST_FILE, (head, b""), *((message(len(chunk), 0), chunk) for chunk in chunks))
    assert read_image(write_image(original)) == original


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_sysv_message_queues_round_trip(texts: Sequence[bytes]) -> None:
    def one(text: bytes) -> bytes:
        body = message(1, len(text))
        return len(body).to_bytes(4, "little") + body + text + bytes(-len(text) % 8)

    queue = (message(b"", sum(map(len, texts)), len(texts)), b"".join(map(one, texts)))
    original = image(magics.IPCNS_MSG, queue, queue)
    assert read_image(write_image(original)) == original


@pytest.mark.parametrize("semaphores", [0, 1, 4, 5])
def test_sysv_semaphores_are_padded_to_eight_bytes(semaphores: int) -> None:
    extra = bytes(-(-2 * semaphores // 8) * 8)
    original = image(magics.IPCNS_SEM, (message(b"", semaphores), extra), (message(b"", 0), b""))
    assert read_image(write_image(original)) == original


def test_sysv_segments_are_in_page_maps_or_in_the_image() -> None:
    original = image(magics.IPCNS_SHM, (message(b"", 5, 1), b""), (message(b"", 5), bytes(8)))
    assert read_image(write_image(original)) == original


def test_truncated_message_queue_is_refused() -> None:
    original = write_image(image(magics.IPCNS_MSG, (message(b"", 1024, 1), b"\x04\x00")))
    with pytest.raises(IntegrityError, match=r"ipc\.img: cut short inside a message queue"):
        read_image(original, "ipc.img")
