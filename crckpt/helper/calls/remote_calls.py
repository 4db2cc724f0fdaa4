"""Make system calls in threads of other processes, to read and set attributes that only they can read and set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from crckpt.helper.kinds import REMOTE_CALLER
from crckpt.host.proc import Identity

# For one process.
_PATIENCE_S: Final = 15.0

LOCKED_NOT, LOCKED_AT_ONCE, LOCKED_WHEN_USED = 0, 1, 2
"""Whether new maps of a process are locked in memory: mlockall(2)."""


class Order(Struct, frozen=True):
    """The task of thread `tid` of the process `pid`: `ask`, or set attributes by name, in this order.

    With `process` it must be this one. With `is_lent` the thread's tracer, a CRIU that waits in a restore's hold, must
    detach from it first.
    """

    pid: int
    tid: int
    does: Literal["ask", "set"]
    values: tuple[tuple[str, tuple[int, ...]], ...] = ()
    is_lent: bool = False
    process: Identity | None = None


class Orders(Struct, frozen=True):
    """What the helper is to do, in this order."""

    orders: tuple[Order, ...]


class OrderResult(Struct, frozen=True):
    """The result of an order: the `values` that were read; `failed` are (name, why) of those that could not be set.

    With `why` no call could be made in that thread.
    """

    values: dict[str, tuple[int, ...]] = {}
    failed: tuple[tuple[str, str], ...] = ()
    why: str = ""


def carry_out(orders: Sequence[Order]) -> tuple[OrderResult, ...]:
    """Carry out the orders in a helper process; return a result for each. Takes about 0.1 s, and 1 ms for each."""
    if not orders:
        return ()
    # The helper does without it, and starts sooner.
    from crckpt.helper import start

    answers, why = start.carry_out(REMOTE_CALLER, Orders(tuple(orders)), OrderResult, len(orders), _PATIENCE_S)
    # The helper answers in the order of the orders: the last ones have no answer.
    missing = OrderResult(why=f"{REMOTE_CALLER.title} {why}")
    return (*(found for found, _ in answers), *(missing for _ in orders[len(answers) :]))
