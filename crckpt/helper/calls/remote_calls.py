"""Enter other processes by a helper process: each reads and sets attributes that only it can, or gives a userfaultfd.

One thread of each is stopped for some milliseconds. A system call in which it waits is restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from crckpt.helper.kinds import REMOTE_CALLER
from crckpt.host import proc

# For one process.
_PATIENCE_S: Final = 15.0

LOCKED_NOT, LOCKED_AT_ONCE, LOCKED_WHEN_USED = 0, 1, 2
"""Whether new maps of a process are locked in memory: mlockall(2)."""


class Order(Struct, frozen=True, tag=True):
    """The task of thread `tid` of the process `pid`: `ask`, or set attributes by name, in this order.

    With `process` it must be this one. With `is_lent` the thread's tracer, a CRIU that waits in a restore's hold, must
    detach from it first.
    """

    pid: int
    tid: int
    does: Literal["ask", "set"]
    values: tuple[tuple[str, tuple[int, ...]], ...] = ()
    is_lent: bool = False
    process: proc.Identity | None = None


class TakeOrder(Struct, frozen=True, tag=True):
    """Take a userfaultfd of the process; or close its descriptor `surplus`, if that is not -1."""

    process: proc.Identity
    surplus: int = -1


class Orders(Struct, frozen=True):
    """What the helper is to do, in this order."""

    orders: tuple[Order | TakeOrder, ...]


class OrderResult(Struct, frozen=True):
    """The result of an order: the `values` that were read; `failed` are (name, why) of those that could not be set.

    With `why`, and perhaps a remedy, nothing could be done in that process. A userfaultfd comes with the message; it is
    our `descriptor` then.
    """

    pid: int
    values: dict[str, tuple[int, ...]] = {}
    failed: tuple[tuple[str, str], ...] = ()
    why: str = ""
    hint: str = ""
    descriptor: int = -1


def carry_out(orders: Sequence[Order]) -> tuple[OrderResult, ...]:
    """Carry out the orders in a helper process; return a result for each. Takes about 0.1 s, and 1 ms for each."""
    answers, why = _carry_out(orders)
    # The helper answers in the order of the orders: the last ones have no answer.
    missing = (OrderResult(order.pid, why=f"{REMOTE_CALLER.title} {why}") for order in orders[len(answers) :])
    return (*(found for found, _ in answers), *missing)


def take_userfaultfds(pids: Iterable[int]) -> tuple[OrderResult, ...]:
    """Take a userfaultfd of each process, which closes its own; the caller closes them. Takes 0.1 s for all."""
    return _take_each(dict.fromkeys(pids, -1))


def close_descriptors(descriptors: Mapping[int, int]) -> tuple[OrderResult, ...]:
    """Close one descriptor in each of these processes, given by PID."""
    return _take_each(descriptors)


def _take_each(wanted: Mapping[int, int]) -> tuple[OrderResult, ...]:
    # Before the helper enters it, a process may have ended, and another one have its PID.
    boot_id = proc.boot_id()
    known = {pid: proc.identify(pid) or proc.Identity(boot_id, pid, 1) for pid in wanted}
    answers, why = _carry_out([TakeOrder(known[pid], surplus) for pid, surplus in wanted.items()])
    found = {each.pid: replace(each, descriptor=(*own, -1)[0]) for each, own in answers}
    missing = f"{REMOTE_CALLER.title} for PID {{pid}} {why}"
    return tuple(found.get(pid) or OrderResult(pid, why=missing.format(pid=pid)) for pid in wanted)


def _carry_out(orders: Sequence[Order | TakeOrder]) -> tuple[list[tuple[OrderResult, list[int]]], str]:
    """Return the answers, and why there are fewer than orders. Never kills: that would kill the entered process."""
    found: list[tuple[OrderResult, list[int]]] = []
    if not orders:
        return found, ""
    # The helper does without these, and starts sooner.
    from crckpt.helper.channel import HelperEnded, HelperSilent
    from crckpt.helper.start import start_helper

    helper = start_helper(REMOTE_CALLER)
    try:
        helper.send(Orders(tuple(orders)))
        while len(found) < len(orders):
            found.append(helper.receive_descriptors(OrderResult, _PATIENCE_S))
        helper.close()
        is_over = helper.child.ends_within(_PATIENCE_S)
    except HelperEnded:
        is_over = True
    except HelperSilent:
        is_over = False
    if not is_over:
        helper.leave()
        return found, f"got no answer for {_PATIENCE_S:g} s"
    return found, f"ended with status {helper.end()}"
