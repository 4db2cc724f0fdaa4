"""A type is the table by which a message is decoded."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import wire
from crckpt.images.decode import Field, decode
from crckpt.images.wire import Message, encode

OFFSET = 100


class Inner(Struct, frozen=True):
    """An embedded message."""

    number: Annotated[int, Field(1, default=0)]


class Outer(Struct, frozen=True):
    """A message with fields of all types."""

    number: Annotated[int, 1]
    flag: Annotated[bool, 2]
    name: Annotated[str, 3]
    content: Annotated[bytes, 4]
    numbers: Annotated[tuple[int, ...], 5]
    inner: Annotated[Inner, 6]
    inners: Annotated[tuple[Inner, ...], 7]
    perhaps: Annotated[int | None, 8]
    perhaps_inner: Annotated[Inner | None, 6]
    deep: Annotated[int, Field(6, 1, default=7)]
    converted: Annotated[str, Field(1, convert=lambda number: str(number + OFFSET))]
    whole: Annotated[bool, Field(convert=lambda message: 9 in message)]
    same: Annotated[Inner, Field()]
    other: str = "of no field"


def message(*items: tuple[int, int, int | bytes]) -> Message:
    return Message(encode(items), "x.img")


def test_every_attribute_of_a_struct_is_read_from_its_field() -> None:
    inner = encode([(1, wire.VARINT, 3)])
    found = decode(
        Outer,
        message(
            (1, wire.VARINT, 5),
            (2, wire.VARINT, 1),
            (3, wire.BYTES, b"name"),
            (4, wire.BYTES, b"\0"),
            (5, wire.BYTES, b"\x01\x02"),
            (5, wire.VARINT, 3),
            (6, wire.BYTES, inner),
            (7, wire.BYTES, inner),
            (7, wire.BYTES, b""),
            (8, wire.VARINT, 8),
            (9, wire.VARINT, 0),
        ),
    )
    three, none = Inner(3), Inner(0)
    assert found == Outer(5, True, "name", b"\0", (1, 2, 3), three, (three, none), 8, three, 3, "105", True, Inner(5))


def test_missing_field_of_a_message_has_its_default_or_is_refused() -> None:
    none = Inner(0)
    assert decode(Outer, message((1, wire.VARINT, 5))) == Outer(
        5, False, "", b"", (), none, (), None, None, 7, "105", False, Inner(5)
    )
    with pytest.raises(IntegrityError, match=r"x\.img: field 1 is missing"):
        decode(Outer, message())


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6, 7, 8])
def test_decoding_a_field_of_another_type_is_refused(number: int) -> None:
    wrong = (number, wire.BYTES, b"x") if number in (1, 2, 8) else (number, wire.VARINT, 1)
    with pytest.raises(IntegrityError, match=rf"x\.img: field {number} is not a"):
        decode(Outer, message(*([(1, wire.VARINT, 5)] if number > 1 else []), wrong))
