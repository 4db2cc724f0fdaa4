"""`core-TID.img`: the state of a thread or of a process (images/core.proto, creds.proto)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Struct

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
    - `rseq`: the address and size of its rseq(2) area, 0 if it registered none
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
        tuple[int, int], Field(_THREAD, 15, wire=Message, convert=lambda rseq: (rseq.uint(1), rseq.uint(2)))
    ] = (0, 0)
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
    path = (_THREAD, _PARENT_DEATH_SIGNAL)
    return edit_image(data, name, magics.CORE, lambda core, name: edit_field(core, path, lambda _: None, name))
