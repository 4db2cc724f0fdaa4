"""`core-TID.img`: the registers of a thread on x86-64 (images/core-x86.proto)."""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import read_single
from crckpt.images.wire import Message

_GENERAL: Final = range(1, 28)
_NATIVE: Final = 1
_FXSAVE: Final = struct.Struct("<4H2Q2I32I64I96x")

_SETS: Final = {
    2: "avx",
    5: "avx512f",
    6: "avx512f",
    7: "avx512f",
    9: "ospke",
    11: "user_shstk",
    17: "amx_tile",
    18: "amx_tile",
}
"""Bit of XSTATE_BV -> whose registers it stands for, in the words of /proc/cpuinfo (asm/fpu/types.h)."""


class Registers(Struct, frozen=True):
    """A thread's registers.

    `general` are those of the kernel's `user_regs_struct` in its order, r15 first; `floating` the 512 bytes of fxsave.
    `is_native` says whether the thread ran 64-bit code.
    """

    general: tuple[int, ...]
    floating: bytes
    is_native: bool


def read_registers(data: bytes, name: str = "core.img") -> Registers:
    """Raises IntegrityError when the image is damaged, or is not one of x86-64."""
    thread = read_single(data, name, magics.CORE).message(2)
    general = thread.message(2)
    return Registers(
        tuple(general.required(number) for number in _GENERAL),
        _fxsave(thread.message(3)),
        general.uint(28, default=_NATIVE) == _NATIVE,
    )


def features_in_use(data: bytes, name: str = "core.img") -> frozenset[str]:
    """Features of the CPU whose registers were in use. Raises IntegrityError when the image is damaged."""
    sets = read_single(data, name, magics.CORE).message(2).message(3).message(13).uint(1)
    return frozenset(feature for bit, feature in _SETS.items() if sets >> bit & 1)


def _fxsave(message: Message) -> bytes:
    words = (*(message.required(number) for number in range(1, 9)), *message.uints(9), *message.uints(10))
    try:
        return _FXSAVE.pack(*words)
    except struct.error as error:
        raise IntegrityError(f"{message.where}: the floating-point registers make no sense: {error}") from error
