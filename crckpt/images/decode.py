"""Decode messages by tables: a type names the field of each attribute by its number.

    class Directories(Struct, frozen=True):
        cwd_id: Annotated[int, 1]
        umask: Annotated[int | None, 3]
        flags: Annotated[int, Field(5, 2, default=0)]

A number must be there, unless it has a default or may be None. Anything else is False or empty if it is missing.
Attributes that name no field are not decoded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct

from crckpt.images.framing import read_messages, read_single
from crckpt.images.wire import Message

_Value = TypeVar("_Value", bound=Struct)


class Field:
    """The field of an attribute: its number, after those of the messages around it. No number: the whole message.

    `convert` gets what was decoded as `wire`, or `default`; without it, the attribute has what was decoded as its type.
    """

    def __init__(
        self, *path: int, default: int | None = None, wire: Any = int, convert: Callable[[Any], Any] | None = None
    ) -> None:
        self.path, self.default, self.wire, self.convert = path, default, wire, convert


def decode(kind: type[_Value], message: Message) -> _Value:
    """Make a value of this type. Raises IntegrityError if a number is missing, or a field has another wire type."""
    return kind(**{name: read(message) for name, read in _table_of(kind)})


def read_one(kind: type[_Value], data: bytes, name: str, magic: int) -> _Value:
    """Decode an image that has exactly one message. Raises IntegrityError."""
    return decode(kind, read_single(data, name, magic))


def read_all(kind: type[_Value], data: bytes, name: str, magic: int) -> tuple[_Value, ...]:
    """Decode all messages of an image. Raises IntegrityError."""
    return tuple(decode(kind, message) for message in read_messages(data, name, magic))


@lru_cache
def _table_of(kind: Any) -> tuple[tuple[str, Callable[[Message], Any]], ...]:
    """Return for each attribute of the type what reads it from a message."""
    found = []
    # With the module's names named, lambdas in annotations find them, too.
    names = vars(sys.modules[kind.__module__])
    for name, hint in get_type_hints(kind, names, include_extras=True).items():
        place = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, int | Field)), None)
        if place is not None:
            found.append((name, _reader(place if isinstance(place, Field) else Field(place), hint.__origin__)))
    return tuple(found)


def _reader(field: Field, kind: Any) -> Callable[[Message], Any]:
    convert, default = field.convert, field.default
    if not field.path:
        return convert or (lambda message: decode(kind, message))
    *around, number = field.path
    may_be_none = NoneType in get_args(kind)
    kind = next(each for each in get_args(kind) if each is not NoneType) if may_be_none else kind
    read = _reader_of(field.wire if convert else kind)

    def find(message: Message) -> Any:
        inner = message.message(*around) if around else message
        has_default = number not in inner and (may_be_none or default is not None)
        value = default if has_default else read(inner, number)
        return convert(value) if convert and value is not None else value

    # Without a loop through all of that: an address space has thousands of numbers.
    return find if around or convert or may_be_none or default is not None else lambda message: read(message, number)


def _reader_of(kind: Any) -> Callable[[Message, int], Any]:
    """Return what reads a field of this type by its number."""
    if get_origin(kind) is tuple:
        each = get_args(kind)[0]
        if each is int:
            return Message.uints
        return lambda message, number: tuple(decode(each, one) for one in message.messages(number))
    return _READERS.get(kind) or (lambda message, number: decode(kind, message.message(number)))


_READERS: Final[dict[Any, Callable[[Message, int], Any]]] = {
    int: Message.required,
    bool: lambda message, number: message.uint(number) != 0,
    bytes: Message.octets,
    str: Message.text,
    Message: Message.message,
}
