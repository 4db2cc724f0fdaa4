"""Records of moves in a store, as crckpts that live or have died leave them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from msgspec.structs import replace
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.host.proc import LiveRoot, identify_live_root
from crckpt.host.syscalls import ptrace_requests
from crckpt.model import JobName
from crckpt.store import Checkpoint, Repository
from crckpt.store.move_states import RULES, Side, State
from crckpt.store.moves import Move, begin_move, store_move
from crckpt.store.owner import identify_owner

PEER: Final = "root@node2"
STATES: Final = tuple((side, state) for side, rules in RULES.items() for state in rules)
"""All states of both sides."""


def record_move(
    repository: Repository,
    side: Side,
    state: State,
    checkpoint: Checkpoint | None = None,
    *,
    alive: bool = False,
    root: LiveRoot | None = None,
    is_settled: bool = True,
    job: str = "job",
    began: datetime | None = None,
) -> Move:
    """Record a move of a job. `alive`: its crckpt is this process; else it has died."""
    owner = identify_owner(time.time())
    begun = begin_move(side, JobName(checkpoint.job if checkpoint else job), PEER)
    move = replace(
        begun,
        state=state,
        checkpoint=checkpoint.id if checkpoint else None,
        # A process of this PID that began at another time is another one.
        owner=owner if alive else replace(owner, start=owner.start + 1),
        root=root,
        is_settled=is_settled,
        began=began or begun.began,
    )
    return store_move(repository.backend, move)


@contextmanager
def live_root(*, held: bool = False) -> Iterator[LiveRoot]:
    """The root of a tree that runs; with `held` a tracer has it, as CRIU does."""
    with program(WAIT_STATEMENTS) as process:
        if held:
            ptrace_requests.seize(process.pid)
        yield identify_live_root(read(process.pid))


def ended_root() -> LiveRoot:
    """The root of a tree that has ended."""
    with live_root() as root:
        return root
