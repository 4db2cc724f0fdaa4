"""`core-TID.img`: the registers of a thread on x86-64 (images/core-x86.proto)."""

from __future__ import annotations

import struct
from typing import Annotated, Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import Field, decode, read_one
from crckpt.images.framing import read_single
from crckpt.images.wire import Message

# In core_entry: general registers, floating-point registers, and in these what XSAVE stores.
_REGISTERS, _FLOATING, _XSAVE = (2, 2), (2, 3), 13
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


def _pack_fxsave(floating: Message) -> bytes:
    words = (*map(floating.required, range(1, 9)), *floating.uints(9), *floating.uints(10))
    return _FXSAVE.pack(*words)


def _pack_components(extended: Message) -> tuple[tuple[int, bytes], ...]:
    return tuple(
        (component, struct.pack(form, *extended.uints(field)))
        for field, component, form in _EXTENDED
        if field in extended
    )


class Registers(Struct, frozen=True):
    """A thread's registers.

    - `general`: in the order of the kernel's `user_regs_struct`, r15 first
    - `floating`: the 512 bytes of fxsave
    - `extended`: the other state components by their numbers, ascending
    - `in_use`: the bits of components that are not in their initial state (xstate_bv)
    - `is_native`: the thread ran 64-bit code
    """

    general: Annotated[
        tuple[int, ...], Field(*_REGISTERS, wire=Message, convert=lambda found: tuple(map(found.required, _GENERAL)))
    ]
    floating: Annotated[bytes, Field(*_FLOATING, wire=Message, convert=_pack_fxsave)]
    extended: Annotated[
        tuple[tuple[int, bytes], ...], Field(*_FLOATING, _XSAVE, wire=Message, convert=_pack_components)
    ]
    in_use: Annotated[int, Field(*_FLOATING, _XSAVE, 1, default=0)]
    is_native: Annotated[bool, Field(*_REGISTERS, _MODE, default=_NATIVE, convert=lambda mode: mode == _NATIVE)]


class SystemCall(Struct, frozen=True):
    """The number of a system call, and whether 64-bit code made it: 32-bit code has other numbers."""

    number: Annotated[int, _CALL]
    is_native: Annotated[bool, Field(_MODE, default=_NATIVE, convert=lambda mode: mode == _NATIVE)]


def read_registers(data: bytes, name: str = "core.img") -> Registers:
    """Decode the registers. Raises IntegrityError if the image is damaged or not of x86-64."""
    try:
        return read_one(Registers, data, name, magics.CORE)
    except struct.error as error:
        raise IntegrityError(f"{name}: invalid floating-point registers: {error}") from error


def read_system_call(data: bytes, name: str = "core.img") -> SystemCall | None:
    """Return the system call that a thread on x86-64 was in; None if it was in none. Raises IntegrityError."""
    general = read_single(data, name, magics.CORE).message(*_REGISTERS)
    # The kernel's "in no call" is -1, of which CRIU may keep the lower half.
    none = 1 << 31
    return None if general.uint(_CALL, none) & none else decode(SystemCall, general)


def features_in_use(data: bytes, name: str = "core.img") -> frozenset[str]:
    """Return the CPU features whose registers were in use. Raises IntegrityError if the image is damaged."""
    sets = read_single(data, name, magics.CORE).message(*_FLOATING, _XSAVE).uint(1)
    return frozenset(feature for bit, feature in _SETS.items() if sets >> bit & 1)
