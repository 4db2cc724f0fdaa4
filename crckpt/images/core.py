"""`core-TID.img`: the state of a thread or of a process (images/core.proto, creds.proto, core-x86.proto)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import Field, decode, read_one
from crckpt.images.framing import edit_image, read_single
from crckpt.images.wire import Message, edit_field

ALIVE: Final = "alive"
STOPPED: Final = "stopped"
ZOMBIE: Final = "zombie"
UNKNOWN: Final = "unknown"

CAPABILITIES: Final = {"CapInh": 9, "CapPrm": 10, "CapEff": 11, "CapBnd": 12, "CapAmb": 19}
"""The field of each set in the image, by its name in /proc/PID/status."""

# compel/include/uapi/task-state.h. CRIU writes a zombie as 2, "dead" (criu/cr-dump.c:1026).
_STATES: Final = {1: ALIVE, 2: ZOMBIE, 3: STOPPED, 6: ZOMBIE}
# SECCOMP_MODE_FILTER (linux/seccomp.h).
_SECCOMP_FILTER: Final = 2
# Parts of the image. A zombie's has none for the thread (criu/cr-dump.c, dump_one_zombie); other threads' have none for
# the process.
_PROCESS, _THREAD, _CREDENTIALS = 3, 5, 10
_PARENT_DEATH_SIGNAL: Final = 8
_RSEQ: Final = 15

# core_entry.march (images/core.proto).
_ARCHITECTURES: Final = dict(
    enumerate(("x86_64", "arm", "aarch64", "ppc64", "s390", "mips", "loongarch64", "riscv64"), start=1)
)


class Credentials(Struct, frozen=True):
    """The user and groups of a thread."""

    uid: Annotated[int, Field(1, default=0)]
    gid: Annotated[int, Field(2, default=0)]
    euid: Annotated[int, Field(3, default=0)]
    egid: Annotated[int, Field(4, default=0)]
    groups: Annotated[tuple[int, ...], 14]


def _read_capabilities(found: Message) -> tuple[int, ...]:
    # CRIU saves what capget(2) returns: words of 32 bits, the lowest first (criu/pie/parasite.c:325).
    sets = (found.uints(number) for number in CAPABILITIES.values())
    return tuple(sum(word << 32 * place for place, word in enumerate(words)) for words in sets)


class Rights(Struct, frozen=True):
    """The rights of a thread: `uids` and `gids` are real, effective, saved and file system ids.

    `capabilities`: sets of bits, in the order of CAPABILITIES. `confined`: it has no_new_privs.
    """

    uids: Annotated[tuple[int, ...], Field(convert=lambda found: tuple(map(found.uint, (1, 3, 5, 7))))]
    gids: Annotated[tuple[int, ...], Field(convert=lambda found: tuple(map(found.uint, (2, 4, 6, 8))))]
    groups: Annotated[frozenset[int], Field(14, wire=tuple[int, ...], convert=frozenset)]
    capabilities: Annotated[tuple[int, ...], Field(convert=_read_capabilities)]
    confined: Annotated[bool, 18]


def _read_comm(core: Message) -> str:
    thread = core.message(_THREAD)
    return thread.text(13) if 13 in thread else core.message(_PROCESS).text(6)


def _read_blocked(core: Message) -> tuple[int, ...]:
    # CRIU saves the leader's mask with the process, that of any other thread with the thread
    # (criu/parasite-syscall.c:194, 448).
    mask = core.message(_THREAD).uint(6, default=core.message(_PROCESS).uint(5))
    return tuple(bit + 1 for bit in range(64) if mask >> bit & 1)


def _read_pending(queue: Message) -> tuple[int, ...]:
    # The number is the first member of the kernel's `siginfo_t`.
    return tuple(int.from_bytes(entry.octets(1)[:4], "little") for entry in queue.messages(1))


class Core(Struct, frozen=True):
    """A thread's state; for a process's first thread also the process's.

    - `state`: ALIVE, STOPPED, ZOMBIE or UNKNOWN
    - `exit_code`: a wait status (exit status times 256, or a signal), meaningful for zombies
    - `blocked`: signal numbers
    - `pending`: signals that wait for the thread, not for the process, one entry for each queued signal
    - `security_profile`: of AppArmor or SELinux, empty if it had none
    - `rseq`: address, size and signature of its rseq(2) area, 0 if it registered none
    - `parent_death_signal`: the signal that it gets when its parent ends, 0 for none (PR_SET_PDEATHSIG)
    - `adopts`: it becomes the parent of orphans among its descendants (PR_SET_CHILD_SUBREAPER)
    - `rights`: its credentials in full
    """

    arch: Annotated[str, Field(1, convert=lambda march: _ARCHITECTURES.get(march, UNKNOWN))]
    comm: Annotated[str, Field(convert=_read_comm)]
    state: Annotated[str, Field(_PROCESS, 1, default=1, convert=lambda state: _STATES.get(state, UNKNOWN))]
    exit_code: Annotated[int, Field(_PROCESS, 2, default=0)]
    blocked: Annotated[tuple[int, ...], Field(convert=_read_blocked)]
    pending: Annotated[tuple[int, ...], Field(_THREAD, 9, wire=Message, convert=_read_pending)]
    credentials: Annotated[Credentials | None, Field(_THREAD, _CREDENTIALS)]
    has_seccomp_filter: Annotated[bool, Field(_THREAD, 11, default=0, convert=lambda mode: mode == _SECCOMP_FILTER)]
    security_profile: Annotated[str, Field(_THREAD, _CREDENTIALS, 15)] = ""
    rseq: Annotated[
        tuple[int, int, int],
        Field(_THREAD, _RSEQ, wire=Message, convert=lambda rseq: (rseq.uint(1), rseq.uint(2), rseq.uint(3))),
    ] = (0, 0, 0)
    parent_death_signal: Annotated[int, Field(_THREAD, _PARENT_DEATH_SIGNAL, default=0)] = 0
    no_new_privs: Annotated[bool, Field(_THREAD, _CREDENTIALS, 18)] = False
    adopts: Annotated[bool, Field(_PROCESS, 18)] = False
    rights: Annotated[Rights | None, Field(_THREAD, _CREDENTIALS)] = None


def read_core(data: bytes, name: str = "core.img") -> Core:
    """Decode the image. Raises IntegrityError if it is damaged."""
    return read_one(Core, data, name, magics.CORE)


def read_rights(data: bytes, name: str = "core.img") -> Rights | None:
    """Decode only the rights; None if the image has none (a zombie). Raises IntegrityError if it is damaged."""
    thread = read_single(data, name, magics.CORE).message(_THREAD)
    return decode(Rights, thread.message(_CREDENTIALS)) if _CREDENTIALS in thread else None


def read_securebits(data: bytes, name: str = "core.img") -> int:
    """Decode the securebits (capabilities(7)). Raises IntegrityError if the image is damaged."""
    return read_single(data, name, magics.CORE).message(_THREAD, _CREDENTIALS).uint(13)


def excess_rights(saved: Rights, had: Rights) -> Iterator[str]:
    """Return which of the saved rights the thread did not have."""
    # CRIU has code in the task's memory report this, and another process of the same user can write there during the
    # dump. So crckpt compares it with what the kernel says. Of two users neither has more rights: any difference
    # counts.
    if saved.uids != had.uids:
        yield f"user {saved.uids[1]}"
    if saved.gids != had.gids or not saved.groups <= had.groups:
        yield f"group {saved.gids[1]}"
    if any(one & ~other for one, other in zip(saved.capabilities, had.capabilities, strict=True)):
        yield "capabilities"
    if had.confined and not saved.confined:
        yield "programs with more rights (no_new_privs)"


def drop_parent_death_signal(data: bytes, name: str = "core.img") -> bytes:
    """Return the image without the parent death signal. Raises IntegrityError."""
    # A detached root is CRIU's child: it would get the signal as soon as CRIU exits. CRIU only warns of that
    # (criu/cr-restore.c:1046).
    return _drop(data, name, _PARENT_DEATH_SIGNAL)


def drop_rseq(data: bytes, name: str = "core.img") -> bytes:
    """Return the image without its restartable sequences (rseq(2)). Raises IntegrityError."""
    return _drop(data, name, _RSEQ)


def _drop(data: bytes, name: str, number: int) -> bytes:
    path = (_THREAD, number)
    return edit_image(data, name, magics.CORE, lambda core, name: edit_field(core, path, lambda _: None, name))


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
