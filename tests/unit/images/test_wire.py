"""The protobuf codec reads what it writes, and damage is always an IntegrityError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crckpt.errors import IntegrityError
from crckpt.images import wire
from crckpt.images.wire import Message, encode, fields

U64 = st.integers(0, 2**64 - 1)
NUMBERS = st.integers(1, 2**29 - 1)
FIELDS = st.one_of(
    st.tuples(NUMBERS, st.just(wire.VARINT), U64),
    st.tuples(NUMBERS, st.just(wire.FIXED64), U64),
    st.tuples(NUMBERS, st.just(wire.FIXED32), st.integers(0, 2**32 - 1)),
    st.tuples(NUMBERS, st.just(wire.BYTES), st.binary(max_size=300)),
)


@given(st.lists(FIELDS))
def test_fields_reads_what_encode_wrote(items: list[tuple[int, int, int | bytes]]) -> None:
    assert list(fields(encode(items))) == items


@given(U64)
def test_varint_is_read_back_as_it_was_written(value: int) -> None:
    data = wire.encode_varint(value)
    assert wire.read_varint(b"\xff" + data + b"\xff", 1) == (value, 1 + len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_are_read_back_as_they_were_written(value: int) -> None:
    assert wire.decode_signed(wire.read_varint(wire.encode_varint(value), 0)[0]) == value


@given(st.lists(U64))
def test_repeated_numbers_are_read_packed_or_not(values: list[int]) -> None:
    packed = b"".join(map(wire.encode_varint, values))
    assert Message(encode([(4, wire.BYTES, packed)]), "x").uints(4) == tuple(values)
    assert Message(encode([(4, wire.VARINT, value) for value in values]), "x").uints(4) == tuple(values)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_integrity_error(data: bytes) -> None:
    with contextlib.suppress(IntegrityError):
        list(fields(data))


@given(st.lists(FIELDS, min_size=1), st.data())
def test_message_cut_inside_a_field_is_refused(items: list[tuple[int, int, int | bytes]], data: st.DataObject) -> None:
    start, encoded = len(encode(items[:-1])), encode(items)
    cut = data.draw(st.integers(start + 1, len(encoded) - 1))
    with pytest.raises(IntegrityError, match=r"here\.img: cut short"):
        list(fields(encoded[:cut], "here.img"))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x01", "0 is not a field number"),
        (b"\x0b", "wire type 3 is unknown"),
        (b"\x0f", "wire type 7 is unknown"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "longer than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "longer than 64 bits"),
        (b"\x0a\x05abc", "5 bytes announced and 3 left"),
    ],
)
def test_invalid_protobuf_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(IntegrityError, match=rf"core-1\.img: .*{why}"):
        list(fields(data, "core-1.img"))


def test_field_of_a_message_is_accessed_by_its_number() -> None:
    message = Message(
        encode(
            [
                (1, wire.VARINT, 5),
                (1, wire.VARINT, 6),
                (2, wire.BYTES, b"na\xff"),
                (3, wire.VARINT, -7),
                (5, wire.BYTES, encode([(1, wire.VARINT, 9)])),
                (5, wire.BYTES, encode([(1, wire.VARINT, 10)])),
            ]
        ),
        "x.img",
    )
    assert message.required(1) == message.uint(1) == 6
    assert message.text(2) == "na\udcff"
    assert wire.decode_signed(message.uint(3)) == -7
    assert [part.uint(1) for part in message.messages(5)] == [9, 10]
    assert message.message(5).uint(1) == 10


def test_absent_fields_of_a_message_have_defaults() -> None:
    message = Message(b"", "x.img")
    assert 1 not in message
    assert (message.uint(1), message.uint(1, 3)) == (0, 3)
    assert (message.text(1), message.octets(1), message.uints(1)) == ("", b"", ())
    assert message.message(1).message(1).messages(1) == ()
    with pytest.raises(IntegrityError, match=r"x\.img: field 1 is missing"):
        message.required(1)


def test_field_of_another_type_is_refused() -> None:
    message = Message(encode([(1, wire.VARINT, 5), (2, wire.BYTES, b"text")]), "x.img")
    with pytest.raises(IntegrityError, match=r"x\.img: field 2 is not a number"):
        message.uint(2)
    with pytest.raises(IntegrityError, match=r"x\.img: field 1 is not a string"):
        message.text(1)
    with pytest.raises(IntegrityError, match=r"x\.img: field 1 is not a string or message"):
        message.messages(1)


def test_string_with_a_zero_byte_is_refused() -> None:
    """CRIU would open `/bin/true`, while crckpt shows another name."""
    message = Message(encode([(6, wire.BYTES, b"/bin/true\0/bin/false")]), "files.img")
    with pytest.raises(IntegrityError, match=r"files\.img: field 6 is a string with a zero byte"):
        message.text(6)
    assert message.octets(6) == b"/bin/true\0/bin/false"


def test_repeated_embedded_message_is_merged() -> None:
    first, second = encode([(1, wire.VARINT, 1), (2, wire.VARINT, 2)]), encode([(1, wire.VARINT, 9)])
    message = Message(encode([(3, wire.BYTES, first), (3, wire.BYTES, second)]), "x").message(3)
    assert (message.uint(1), message.uint(2)) == (9, 2)
