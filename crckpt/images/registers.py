"""`core-TID.img`: the registers of a thread on x86-64 (images/core-x86.proto)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import read_single
from crckpt.images.wire import Message

# The fields of user_x86_regs_entry are in the order of the kernel's structure (images/core-x86.proto).
_GENERAL: Final = range(1, 28)
# orig_ax.
_CALL: Final = 16
_MODE: Final = 28
_NATIVE: Final = 1
# Field, number of the state component, and layout: upper halves of ymm, MPX twice, k, upper halves of zmm0 to 15, zmm16
# to 31, protection keys.
_EXTENDED: Final = (
    (2, 2, "<64I"),
    (3, 3, "<8Q"),
    (4, 4, "<8Q"),
    (5, 5, "<8Q"),
    (6, 6, "<64Q"),
    (7, 7, "<128Q"),
    (8, 9, "<2I"),
)
# The FXSAVE area of 64-bit mode. Its last 96 bytes are reserved.
_FXSAVE: Final = struct.Struct("<4H2Q2I32I64I96x")

# The CPU feature of each bit of XSTATE_BV, as /proc/cpuinfo names it (asm/fpu/types.h).
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


class Registers(Struct, frozen=True):
    """A thread's registers.

    - `general`: in the order of the kernel's `user_regs_struct`, r15 first
    - `floating`: the 512 bytes of fxsave
    - `extended`: the other state components by their numbers, ascending
    - `in_use`: the bits of components that are not in their initial state (xstate_bv)
    - `is_native`: the thread ran 64-bit code
    """

    general: tuple[int, ...]
    floating: bytes
    extended: tuple[tuple[int, bytes], ...]
    in_use: int
    is_native: bool


def read_registers(data: bytes, name: str = "core.img") -> Registers:
    """Decode the registers. Raises IntegrityError if the image is damaged or not of x86-64."""
    thread = read_single(data, name, magics.CORE).message(2)
    general, floating = thread.message(2), thread.message(3)
    extended = floating.message(13)
    try:
        return Registers(
            general=tuple(general.required(number) for number in _GENERAL),
            floating=_fxsave(floating),
            extended=tuple(_components(extended)),
            in_use=extended.uint(1),
            is_native=general.uint(_MODE, default=_NATIVE) == _NATIVE,
        )
    except struct.error as error:
        raise IntegrityError(f"{name}: invalid floating-point registers: {error}") from error


class SystemCall(Struct, frozen=True):
    """The number of a system call, and whether 64-bit code made it: 32-bit code has other numbers."""

    number: int
    is_native: bool


def read_system_call(data: bytes, name: str = "core.img") -> SystemCall | None:
    """Return the system call that a thread on x86-64 was in; None if it was in none. Raises IntegrityError."""
    general = read_single(data, name, magics.CORE).message(2).message(2)
    number = general.optional(_CALL)
    # The kernel's "in no call" is -1, of which CRIU may keep the lower half.
    if number is None or number >> 31 & 1:
        return None
    return SystemCall(number, general.uint(_MODE, default=_NATIVE) == _NATIVE)


def features_in_use(data: bytes, name: str = "core.img") -> frozenset[str]:
    """Return the CPU features whose registers were in use. Raises IntegrityError if the image is damaged."""
    sets = read_single(data, name, magics.CORE).message(2).message(3).message(13).uint(1)
    return frozenset(feature for bit, feature in _SETS.items() if sets >> bit & 1)


def _fxsave(message: Message) -> bytes:
    words = (*(message.required(number) for number in range(1, 9)), *message.uints(9), *message.uints(10))
    return _FXSAVE.pack(*words)


def _components(message: Message) -> Iterator[tuple[int, bytes]]:
    for field, component, form in _EXTENDED:
        if field in message:
            yield component, struct.pack(form, *message.uints(field))
