"""Documents of a store fit their type as a whole, or are refused."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.store.documents import decode


class _Note(Struct, frozen=True):
    text: str
    number: int = 0


def test_string_with_invalid_encoding_is_read() -> None:
    assert decode(b'{"text": "a\\udcff", "number": 7}', _Note, "note") == _Note("a\udcff", 7)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"text": "a"',
        b"\xff",
        b'{"text": "\xff"}',
        b'{"other": ' + b"[" * 100_000,
        b'{"text": "\\udcff"',
        b"nonsense",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_invalid_json_is_damage(content: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"^the note is damaged: ."):
        decode(content, _Note, "the note")


@pytest.mark.parametrize(
    "content", [b"7", b"[]", b'{"text": 7}', b'{"number": 7}', b'{"text": "\\udcff", "number": "x"}']
)
def test_wrong_type_is_a_validation_error(content: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(content, _Note, "the note")
