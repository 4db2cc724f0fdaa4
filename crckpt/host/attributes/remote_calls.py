"""Make system calls in threads of other processes, to read and set attributes that only they can read and set.

A helper process makes the calls (`crckpt.host.attributes.remote_caller`), because a tracer must do nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from crckpt.host.proc import Identity
from crckpt.host.process import run

_HELPER: Final = "crckpt.host.attributes.remote_caller"
# For one process.
_PATIENCE_S: Final = 15.0
_KEPT_WAITING: Final = f"crckpt's helper process got no answer within {_PATIENCE_S:g} s"

LOCKED_NOT, LOCKED_AT_ONCE, LOCKED_WHEN_USED = 0, 1, 2
"""Whether new maps of a process are locked in memory: mlockall(2)."""


class Order(Struct, frozen=True):
    """The task of thread `tid` of the process `pid`: `ask`, or set attributes by name, in this order.

    With `process` it must be this one. With `is_lent` the
    thread's tracer, a CRIU that waits in a restore's hold, must detach from it first.
    """

    pid: int
    tid: int
    does: Literal["ask", "set"]
    values: tuple[tuple[str, tuple[int, ...]], ...] = ()
    is_lent: bool = False
    process: Identity | None = None


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
    # A pipe does not hold the results of a large tree: the helper would wait for a reader.
    with _memory() as said, _memory() as answers:
        os.write(said, msgspec.json.encode(tuple(orders)))
        os.lseek(said, 0, os.SEEK_SET)
        words = (sys.executable, "-P", "-m", _HELPER, str(said), str(answers))
        child = run.start(words, output=Path(os.devnull), keep=(said, answers), python_path=Path(__file__).parents[3])
        has_ended = _wait_for_progress(child, answers)
        why = f"crckpt's helper process ended with status {child.wait()}" if has_ended else _KEPT_WAITING
        os.lseek(answers, 0, os.SEEK_SET)
        found = [msgspec.json.decode(line, type=OrderResult) for line in read_all(answers).splitlines()]
    # The helper answers in the order of the orders: the last ones have no answer.
    return (*found, *(OrderResult(why=why) for _ in orders[len(found) :]))


def _wait_for_progress(child: run.Child, answers: int) -> bool:
    """Wait for the helper while it makes progress. Return whether it has ended."""
    written = -1
    while (now := os.fstat(answers).st_size) != written:
        written = now
        if child.ends_within(_PATIENCE_S):
            return True
    # Not killed: during a call that would kill the process that blocks it, too.
    child.abandon()
    return False


@contextmanager
def _memory() -> Iterator[int]:
    descriptor = os.memfd_create("crckpt", os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """Read a descriptor to its end."""
    return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
