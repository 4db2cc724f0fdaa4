"""Requests to the guard of claimed addresses, and its answers: one JSON message each."""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from crckpt.host.proc.live_root import LiveRoot

LONGEST: Final = 65536
_Message = TypeVar("_Message", bound="GuardRequest | GuardAnswer")


class GuardRequest(Struct, frozen=True):
    """Perform one of the steps of `claim`; or `keep` the addresses: the guard then ends.

    `expect` the tree with this `root` to use the addresses: CRIU holds it, and lets it run, or ends it.
    """

    do: Literal["claim", "expect", "release", "keep"]
    root: LiveRoot | None = None


class GuardAnswer(Struct, frozen=True):
    """The step is done, or why it `failed`. `warning`: what did not work, but does not matter to the step."""

    failed: str = ""
    hint: str = ""
    warning: str = ""


def encode(message: GuardRequest | GuardAnswer) -> bytes:
    """Encode a message."""
    return msgspec.json.encode(message)


def decode(data: bytes, kind: type[_Message]) -> _Message | None:
    """Decode a message; None if it is none of this kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        return None
