"""Protobuf's wire format, as far as CRIU's images use it. Source: protobuf.dev/programming-guides/encoding.

Groups (wire types 3 and 4) are refused: no CRIU image has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from crckpt.errors import IntegrityError

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5

_FIXED_SIZE = {FIXED64: 8, FIXED32: 4}
# Protobuf's largest field number.
_MAX_FIELD = (1 << 29) - 1
_U64 = 1 << 64


def fields(data: bytes, where: str = "protobuf") -> Iterator[tuple[int, int, int | bytes]]:
    """Decode the fields of a message in order: (field number, wire type, value).

    Varints and fixed sizes become unsigned integers, everything with a length bytes. `where` names the image in errors.
    Raises IntegrityError if the bytes are no message.
    """
    at, end = 0, len(data)
    value: int | bytes
    while at < end:
        key, at = read_varint(data, at, where)
        number, kind = key >> 3, key & 7
        if not 1 <= number <= _MAX_FIELD:
            raise IntegrityError(f"{where}: {number} is not a field number")
        if kind == VARINT:
            value, at = read_varint(data, at, where)
        else:
            if kind == BYTES:
                size, at = read_varint(data, at, where)
            elif (size := _FIXED_SIZE.get(kind, 0)) == 0:
                raise IntegrityError(f"{where}: wire type {kind} is unknown")
            if at + size > end:
                raise IntegrityError(f"{where}: cut short, {size} bytes announced and {end - at} left")
            value, at = data[at : at + size], at + size
            if kind != BYTES:
                value = int.from_bytes(value, "little")
        yield number, kind, value


def read_varint(data: bytes, at: int, where: str = "protobuf") -> tuple[int, int]:
    """Return the unsigned 64-bit varint at offset `at`, and the offset after it. Raises IntegrityError."""
    value = shift = 0
    # Ten groups of seven bits hold 64 bits; of the tenth only the lowest bit may be set.
    for byte in data[at : at + 10]:
        at += 1
        if byte < 0x80:
            value |= byte << shift
            if value < _U64:
                return value, at
            break
        value |= (byte & 0x7F) << shift
        shift += 7
    if shift < 70 and value < _U64:
        raise IntegrityError(f"{where}: cut short inside a number")
    raise IntegrityError(f"{where}: a number is longer than 64 bits")


def decode_signed(value: int) -> int:
    """Decode an `int32` or `int64` varint: two's complement of 64 bits."""
    return value - _U64 if value >> 63 else value


class Message:
    """A decoded message; its methods take field numbers.

    As in protobuf, the last of several fields with the same number counts, and embedded messages are merged. A missing
    field has the default. Every method raises IntegrityError with the name of the image if a field has the wrong wire
    type.
    """

    __slots__ = ("_embedded", "_fields", "where")

    def __init__(self, data: bytes, where: str) -> None:
        """Decode the bytes. Raises IntegrityError if they are no message."""
        self.where = where
        self._fields: dict[int, list[int | bytes]] = {}
        self._embedded: dict[int, Message] = {}
        for number, _, value in fields(data, where):
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def required(self, number: int) -> int:
        """Return an unsigned integer that the format demands. Raises IntegrityError if it is missing."""
        if number not in self._fields:
            raise IntegrityError(f"{self.where}: field {number} is missing")
        return self.uint(number)

    def uint(self, number: int, default: int = 0) -> int:
        """Return an unsigned integer."""
        value = self._fields[number][-1] if number in self._fields else default
        if isinstance(value, bytes):
            raise IntegrityError(f"{self.where}: field {number} is not a number")
        return value

    def octets(self, number: int) -> bytes:
        """Return a byte string."""
        return self._octets(self._fields[number][-1], number) if number in self._fields else b""

    def text(self, number: int) -> str:
        """Return a string."""
        octets = self.octets(number)
        if b"\0" in octets:
            # CRIU would use only the part before it: crckpt must not show another name than CRIU opens.
            raise IntegrityError(f"{self.where}: field {number} is a string with a zero byte")
        # CRIU writes file names as the kernel has them: bytes that are no UTF-8 become surrogates.
        return octets.decode("utf-8", "surrogateescape")

    def uints(self, number: int) -> tuple[int, ...]:
        """Return a repeated unsigned integer, packed or not."""
        values: list[int] = []
        for value in self._fields.get(number, ()):
            if isinstance(value, int):
                values.append(value)
                continue
            at = 0
            while at < len(value):
                one, at = read_varint(value, at, self.where)
                values.append(one)
        return tuple(values)

    def message(self, number: int, *path: int) -> Message:
        """Return an embedded message, empty if it is missing; with `path`, the one of these numbers inside of it."""
        if number not in self._embedded:
            # Joined parts decode to the merged message, for crckpt as for CRIU.
            parts = (self._octets(value, number) for value in self._fields.get(number, ()))
            self._embedded[number] = Message(b"".join(parts), self.where)
        embedded = self._embedded[number]
        return embedded.message(*path) if path else embedded

    def messages(self, number: int) -> tuple[Message, ...]:
        """Return a repeated embedded message."""
        return tuple(Message(self._octets(value, number), self.where) for value in self._fields.get(number, ()))

    def _octets(self, value: int | bytes, number: int) -> bytes:
        if not isinstance(value, bytes):
            raise IntegrityError(f"{self.where}: field {number} is not a string or message")
        return value


def encode(items: Iterable[tuple[int, int, int | bytes]]) -> bytes:
    """Encode fields: the inverse of `fields`. Negative integers become two's complement of 64 bits."""
    parts = []
    for number, kind, value in items:
        parts.append(encode_varint(number << 3 | kind))
        if isinstance(value, bytes):
            parts += [encode_varint(len(value)), value]
        else:
            parts.append(encode_varint(value) if kind == VARINT else value.to_bytes(_FIXED_SIZE[kind], "little"))
    return b"".join(parts)


def edit_field(
    data: bytes, path: Sequence[int], change: Callable[[int | bytes], int | bytes | None], where: str
) -> bytes:
    """Change a field; None removes it. `path` has its number after those of the messages around it."""
    first, *rest = path

    def edit(value: int | bytes) -> int | bytes | None:
        if not rest:
            return change(value)
        return edit_field(value, rest, change, where) if isinstance(value, bytes) else value

    edited = ((number, kind, edit(value) if number == first else value) for number, kind, value in fields(data, where))
    return encode((number, kind, value) for number, kind, value in edited if value is not None)


def encode_varint(value: int) -> bytes:
    """Encode an integer as a varint; a negative one in two's complement of 64 bits."""
    value %= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
