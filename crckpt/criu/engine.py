"""Run CRIU and follow it to its end, through a hold if there is one.

CRIU is never killed by us: cut short, it leaves sockets in repair mode and packets dropped. It runs in a session of
its own, so neither ^C nor the death of crckpt reaches it.
"""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from crckpt.criu.hold import Hold
from crckpt.host import run
from crckpt.host.signals import interrupts_let_in, interrupts_put_off


class Outcome(Struct, frozen=True):
    """How a run of CRIU ended. `status` is its exit status or minus a signal; times are monotonic, in seconds."""

    argv: tuple[str, ...]
    status: int
    log: str
    started: float
    ended: float

    @property
    def ok(self) -> bool:
        """Whether CRIU says that it did what it was asked."""
        return self.status == 0


def follow(
    argv: tuple[str, ...],
    log: Path,
    *,
    hold: Hold | None = None,
    in_hold: Callable[[], None] | None = None,
    terminal: int | None = None,
    keep: Sequence[int] = (),
    meanwhile: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run CRIU to its end. When it reaches the `hold`, call `in_hold`: a return commits, an exception aborts.

    Whatever `in_hold` raises is raised again, after CRIU has undone its work and ended. An interruption aborts a hold;
    elsewhere it is put off until CRIU has ended. `terminal` is a descriptor that CRIU gets as stdin; CRIU then stays in
    our session, because the tree is to live in it. `keep` are descriptors that CRIU is to hand to the tree.
    `meanwhile`, which raises nothing, is called in a thread as soon as CRIU runs.
    """
    with interrupts_put_off():
        started = time.monotonic()
        child = run.start(argv, output=log.with_suffix(".out"), own_session=terminal is None, stdin=terminal, keep=keep)
        aside = threading.Thread(target=meanwhile)
        aside.start()
        failure = _attend(child, hold, in_hold)
        status = child.wait()
        outcome = Outcome(argv, status, _read_log(log), started, time.monotonic())
        aside.join()
        if failure is not None:
            raise failure
    return outcome


def run_id(log: str) -> str | None:
    """The id of CRIU's run, which also names its network lock (`inet CRIU-<id>`)."""
    found = re.search(r"CRIU run id = (\S+)", log)
    return found[1] if found else None


def _attend(child: run.Child, hold: Hold | None, in_hold: Callable[[], None] | None) -> BaseException | None:
    if hold is None or in_hold is None:
        return None
    ready, _, _ = select.select([hold.reached, child.pidfd], [], [])
    if hold.reached not in ready:
        return None
    try:
        with interrupts_let_in():
            in_hold()
        hold.commit()
    # Whatever it was: CRIU must first undo and end.
    except BaseException as error:
        hold.release()
        return error
    return None


def _read_log(log: Path) -> str:
    """CRIU's log, after what it wrote to its stderr before the log was open."""
    texts = (path.read_text(errors="replace") for path in (log.with_suffix(".out"), log) if path.exists())
    return "".join(texts)
