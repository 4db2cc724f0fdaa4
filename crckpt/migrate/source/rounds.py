"""Rounds of copying while the tree runs: what each has copied, the estimated downtime, and when there are enough."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import mebibytes
from crckpt.errors import KEEPS_RUNNING, CrckptError, Interrupted, PreflightRefused
from crckpt.migrate.request import MigrateRequest
from crckpt.migrate.source.hand_over import SourceMove
from crckpt.ops.dump.result import DumpResult
from crckpt.store.layout import manifest_name
from crckpt.store.moves import store_move

# A restore there without its memory, and the messages around it, take as long as a round takes here without storing
# and sending: both start CRIU, and look at the same tree. This is before the first such round, in seconds.
_RESTORE_S: Final = 0.2
# The other host fills the tree with memory that it has unpacked already: in this share of the time in which this host
# compressed and stored all of it (measured with 64 and 256 MB, on hosts of the same kind: 0.1 to 0.2).
_FILL_SHARE: Final = 0.15
# What would be copied while the tree is frozen takes at most this share of the rest: another round is not worth it.
_LITTLE: Final = 0.1
# A round that copies more than this share of what the round before copied is not worth its time.
_LEAST_SHRINK: Final = 0.7
_LITTLE_LEFT: Final = "little was left to copy"


class Round(Struct, frozen=True):
    """What is known after a round.

    - `raw_bytes`: memory that was copied; `sent_bytes`: what the other store lacked of it, as it was sent
    - `dump_s`: of the whole dump; in it `frozen_s`, the freeze, and `store_s`, storing
    - `send_s`: of sending
    - `since_last_s`: from the freeze before to this freeze; None for the first round
    - `since_s`: from this freeze until now
    """

    raw_bytes: int
    sent_bytes: int
    dump_s: float
    frozen_s: float
    store_s: float
    send_s: float
    since_last_s: float | None
    since_s: float

    @property
    def written_per_s(self) -> float | None:
        """The bytes of memory that the tree writes per second; None if that is not known yet."""
        return self.raw_bytes / self.since_last_s if self.since_last_s else None


def measure_round(taken: DumpResult, dump_s: float, before: DumpResult | None, sent_bytes: int, send_s: float) -> Round:
    """Measure a round: its dump, the dump before, what was sent, and how long that took."""
    checkpoint = taken.checkpoint
    assert checkpoint is not None
    began = checkpoint.created.timestamp()
    last = before.checkpoint.created.timestamp() if before is not None and before.checkpoint is not None else None
    return Round(
        checkpoint.statistics.new_bytes,
        sent_bytes,
        dump_s,
        taken.frozen_ms / 1000,
        checkpoint.statistics.commit_ms / 1000,
        send_s,
        max(began - last, 0) if last is not None else None,
        max(time.time() - began, 0),
    )


class Downtime(Struct, frozen=True):
    """The estimated downtime, in seconds: of what was written since the last freeze, and of all else."""

    written_s: float
    fixed_s: float

    @property
    def ms(self) -> float:
        """All of it, in milliseconds."""
        return (self.written_s + self.fixed_s) * 1000


def estimate_downtime(rounds: list[Round], written_per_s: float | None, *, is_lazy: bool = False) -> Downtime:
    """Estimate the downtime if the tree were frozen now; if `is_lazy`, it runs before its memory is filled."""
    first, last = rounds[0], rounds[-1]
    left = last.raw_bytes if written_per_s is None else min(written_per_s * last.since_s, first.raw_bytes)
    share = left / last.raw_bytes if last.raw_bytes else 0
    # A round that copied more was frozen for longer than the hand-over, which copies less than any round, will be.
    frozen_s = min(each.frozen_s for each in rounds)
    longer_s = last.frozen_s - frozen_s
    restore_s = last.dump_s - last.store_s - longer_s if len(rounds) > 1 else frozen_s + _RESTORE_S
    fill_s = 0 if is_lazy else first.store_s * _FILL_SHARE
    return Downtime((last.store_s + last.send_s) * share, frozen_s + restore_s + fill_s)


def explain_end(request: MigrateRequest, rounds: list[Round], downtime: Downtime, bytes_per_s: float | None) -> str:
    """Say why there are enough rounds; empty if another one is worth its time. The speed may be unknown."""
    if request.max_downtime_ms is not None and downtime.ms <= request.max_downtime_ms:
        return "the estimated downtime is within --max-downtime"
    if len(rounds) >= request.max_rounds:
        return "--max-rounds is reached"
    if len(rounds) < 2:
        return ""
    last = rounds[-1]
    if downtime.written_s <= _LITTLE * downtime.fixed_s:
        return _LITTLE_LEFT
    if len(rounds) > 2 and last.raw_bytes > _LEAST_SHRINK * rounds[-2].raw_bytes:
        if downtime.written_s < downtime.fixed_s / 2:
            return _LITTLE_LEFT
        why = "the program writes memory as fast as rounds copy it: "
        why += f"{mebibytes(last.raw_bytes)} in {last.since_s:.1f} s"
        if bytes_per_s is not None and last.send_s >= last.since_s / 2:
            # The round waited for it most of its time.
            why += f"; the connection takes {mebibytes(round(bytes_per_s))} per second"
        return why
    return ""


def check_budget(request: MigrateRequest, downtime: Downtime) -> None:
    """Raise PreflightRefused if --abort-over was given and the estimate is over the budget."""
    budget = request.max_downtime_ms
    if request.abort_over and budget is not None and downtime.ms > budget:
        raise PreflightRefused(
            f"the estimated downtime is {downtime.ms:.0f} ms, over the budget of {budget:.0f} ms (--max-downtime)",
            state=KEEPS_RUNNING,
            hint="allow a longer downtime: --max-downtime TIME; or leave out --abort-over, to move it anyway",
        )


# Seconds.
_REMOVED_WITHIN_S: Final = 1.0


@contextmanager
def rounds_removed(source: SourceMove) -> Iterator[None]:
    """After the block, remove the checkpoints of rounds of the job's moves: the last one of the move has all of them.

    If that does not exist, the newest round's is kept: the next move counts from it. So are those with a tag.
    """
    try:
        yield
    finally:
        last, repository = source.move.checkpoint, source.repository
        is_stored = last is not None and repository.backend.exists(manifest_name(last))
        # A store in use keeps them: clients may wait.
        with suppress(CrckptError, OSError, Interrupted), repository.exclusive(_REMOVED_WITHIN_S):
            # Of those without a tag, oldest first.
            left = set(source.move.rounds) - {tag.id for tag in repository.tags()}
            found = repository.checkpoints(source.move.job) if source.move.rounds else ()
            rounds = tuple(checkpoint.id for checkpoint in found if checkpoint.id in left)
            kept = () if is_stored else rounds[-1:]
            repository.remove([each for each in rounds if each not in kept])
            source.move = store_move(repository.backend, replace(source.move, rounds=kept))
