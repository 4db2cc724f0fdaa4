"""`core-TID.img`: the state of a thread or of a process (images/core.proto)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.creds import Rights, decode_rights
from crckpt.images.framing import edit_image, read_single
from crckpt.images.wire import Message, edit_field

ALIVE: Final = "alive"
STOPPED: Final = "stopped"
ZOMBIE: Final = "zombie"
UNKNOWN: Final = "unknown"

# compel/include/uapi/task-state.h. CRIU writes a zombie as 2, "dead" (criu/cr-dump.c:1026).
_STATES: Final = {1: ALIVE, 2: ZOMBIE, 3: STOPPED, 6: ZOMBIE}

# SECCOMP_MODE_FILTER (linux/seccomp.h).
_SECCOMP_FILTER: Final = 2
_THREAD_CORE: Final = 5
_PARENT_DEATH_SIGNAL: Final = 8

# core_entry.march (images/core.proto).
_ARCHITECTURES: Final = dict(
    enumerate(("x86_64", "arm", "aarch64", "ppc64", "s390", "mips", "loongarch64", "riscv64"), start=1)
)


class Credentials(Struct, frozen=True):
    """The user and groups of a thread."""

    uid: int
    gid: int
    euid: int
    egid: int
    groups: tuple[int, ...]


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

    arch: str
    comm: str
    state: str
    exit_code: int
    blocked: tuple[int, ...]
    pending: tuple[int, ...]
    credentials: Credentials | None
    has_seccomp_filter: bool
    security_profile: str = ""
    rseq: tuple[int, int] = (0, 0)
    parent_death_signal: int = 0
    no_new_privs: bool = False
    adopts: bool = False
    rights: Rights | None = None


def read_core(data: bytes, name: str = "core.img") -> Core:
    """Decode the image. Raises IntegrityError if it is damaged."""
    message = read_single(data, name, magics.CORE)
    # A zombie's image has no part for the thread (criu/cr-dump.c, dump_one_zombie); other threads' have none for the
    # process.
    task, thread = message.message(3), message.message(5)
    return Core(
        arch=_ARCHITECTURES.get(message.required(1), UNKNOWN),
        comm=thread.text(13, default=task.text(6)),
        state=_STATES.get(task.uint(1, default=1), UNKNOWN),
        exit_code=task.uint(2),
        # CRIU saves the leader's mask with the process, that of any other thread with the thread
        # (criu/parasite-syscall.c:194, 448).
        blocked=_signal_set(thread.uint(6, default=task.uint(5))),
        pending=_queue(thread.message(9)),
        credentials=_credentials(thread.message(10)) if 10 in thread else None,
        has_seccomp_filter=thread.uint(11) == _SECCOMP_FILTER,
        security_profile=thread.message(10).text(15) if 10 in thread else "",
        rseq=(thread.message(15).uint(1), thread.message(15).uint(2)),
        parent_death_signal=thread.uint(_PARENT_DEATH_SIGNAL),
        no_new_privs=10 in thread and thread.message(10).uint(18) != 0,
        adopts=task.uint(18) != 0,
        rights=decode_rights(thread.message(10)) if 10 in thread else None,
    )


def drop_parent_death_signal(data: bytes, name: str = "core.img") -> bytes:
    """Return the image without the parent death signal. Raises IntegrityError."""
    # A detached root is CRIU's child: it would get the signal as soon as CRIU exits. CRIU only warns of that
    # (criu/cr-restore.c:1046).
    return edit_image(data, name, magics.CORE, _drop_signal)


def _drop_signal(core: bytes, name: str) -> bytes:
    return edit_field(core, (_THREAD_CORE, _PARENT_DEATH_SIGNAL), lambda _: None, name)


def _signal_set(mask: int) -> tuple[int, ...]:
    return tuple(bit + 1 for bit in range(64) if mask >> bit & 1)


def _queue(message: Message) -> tuple[int, ...]:
    """Return the signal numbers: the first member of each kernel `siginfo_t`."""
    return tuple(int.from_bytes(entry.octets(1)[:4], "little") for entry in message.messages(1))


def _credentials(message: Message) -> Credentials:
    uid, gid, euid, egid = (message.uint(number) for number in range(1, 5))
    return Credentials(uid, gid, euid, egid, message.uints(14))
