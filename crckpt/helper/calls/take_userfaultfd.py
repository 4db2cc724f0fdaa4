"""Take a userfaultfd of another process: the process makes one, we duplicate it, and the process closes its own.

A helper process enters it (`crckpt.helper.calls.userfaultfd_taker`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.helper.kinds import USERFAULTFD_TAKER
from crckpt.host import proc

# For one process.
_PATIENCE_S: Final = 15.0


class TakeOrder(Struct, frozen=True):
    """Take a userfaultfd of the process; or close its descriptor `surplus`, if that is not -1."""

    process: proc.Identity
    surplus: int = -1


class TakeOrders(Struct, frozen=True):
    """What the helper is to do, in this order."""

    orders: tuple[TakeOrder, ...]


class TakeResult(Struct, frozen=True):
    """The result for one process: our `descriptor`; or -1, the reason, and a remedy."""

    pid: int
    descriptor: int
    why: str = ""
    hint: str = ""


def take_userfaultfds(pids: Iterable[int]) -> tuple[TakeResult, ...]:
    """Take a userfaultfd of each of these processes; the caller closes them. Takes about 0.1 s for all.

    One thread of each is stopped for some milliseconds. A system call in which it waits is restarted.
    """
    return _enter_each(dict.fromkeys(pids, -1))


def close_descriptors(descriptors: Mapping[int, int]) -> tuple[TakeResult, ...]:
    """Close one descriptor in each of these processes, given by PID."""
    return _enter_each(descriptors)


def _enter_each(wanted: Mapping[int, int]) -> tuple[TakeResult, ...]:
    if not wanted:
        return ()
    # The helper does without it, and starts sooner.
    from crckpt.helper import start

    # Before the helper enters it, a process may have ended, and another one have its PID.
    orders = tuple(TakeOrder(_identify(pid), surplus) for pid, surplus in wanted.items())
    answers, why = start.carry_out(USERFAULTFD_TAKER, TakeOrders(orders), TakeResult, len(orders), _PATIENCE_S)
    found = {taken.pid: replace(taken, descriptor=(*descriptors, -1)[0]) for taken, descriptors in answers}
    return tuple(
        found.get(pid) or TakeResult(pid, -1, f"{USERFAULTFD_TAKER.title} for PID {pid} {why}") for pid in wanted
    )


def _identify(pid: int) -> proc.Identity:
    """Identify the process; if it has ended, no process."""
    return proc.identify(pid) or proc.Identity(proc.boot_id(), pid, 1)
