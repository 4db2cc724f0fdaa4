"""Decode JSON of a store by type. A document that does not fit is refused as a whole."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from crckpt.errors import IntegrityError

_Document = TypeVar("_Document")


def decode(content: bytes, kind: type[_Document], name: str, plain: Any = None) -> _Document:
    """Decode a document of a type; `name` is for errors. `plain` is the type without Raw, if it has Raw.

    Raises IntegrityError if it is not JSON, or nested too deep; msgspec.ValidationError if it is of another type.
    """
    decoder = _decoder_of(cast("Any", kind))
    try:
        try:
            document: _Document = decoder.decode(content)
        except msgspec.ValidationError:
            # A DecodeError, too: without this the document would be decoded again.
            raise
        except msgspec.DecodeError:
            # Only json reads the lone surrogates of a string in no encoding.
            document = msgspec.convert(json.loads(content), plain or kind)
    except msgspec.ValidationError:
        raise
    # A store from elsewhere may hold anything: 200,000 brackets exceed Python's recursion limit.
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise IntegrityError(f"{name} is damaged: {str(error) or type(error).__name__}") from error
    return document


@lru_cache
def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
