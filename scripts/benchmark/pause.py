"""Measure how long a target is frozen, as it sees it itself, and the time from the command until it runs again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from benchmark.peers import bare_dump
from benchmark.report import Row
from benchmark.setting import Setting, wait_committed
from benchmark.targets import STAMPING, Target, started
from crckpt.store import Repository

PAUSE_BOUND = 1.05
WALL_BOUND = 1.3
JUDGED_FROM = 1024
"""Below this many MiB the start of programs dominates."""


@dataclass
class _Samples:
    pause: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def take(self, target: Target, work: Callable[[], object], *, returns_when_running: bool) -> None:
        """Time `work`. Without `returns_when_running` it continues after the freeze: the target tells when it ran."""
        began = time.monotonic()
        work()
        ended = time.monotonic()
        gap = target.gap(began, ended)
        self.pause.append(gap.length)
        self.wall.append((ended if returns_when_running else gap.ended) - began)


def rows(setting: Setting) -> Iterator[Row]:
    """Return two rows for each target and size."""
    for size in setting.sizes:
        for kind in (kind for kind in setting.kinds if kind in STAMPING):
            yield from _rows(setting, kind, size)


def _rows(setting: Setting, kind: str, size: int) -> Iterator[Row]:
    ours, bare = _Samples(), _Samples()
    asynchronous = ("--async",) if "--async" in setting.crckpt(setting.work, "dump", "--help") else ()
    with started(setting, kind, size) as target:
        for _ in range(setting.many_runs):
            with setting.fresh() as directory:
                store = directory / "store"
                Repository.open(store, create=True)
                dump = partial(setting.crckpt, store, "dump", str(target.pid), "job", *asynchronous)
                ours.take(target, dump, returns_when_running=bool(asynchronous))
                wait_committed(store)
            with setting.fresh() as directory:
                images = directory / "images"
                bare.take(target, partial(bare_dump, setting, target.pid, images), returns_when_running=True)
    judged = size >= JUDGED_FROM
    for what, mine, theirs, bound in (
        ("stands still", ours.pause, bare.pause, PAUSE_BOUND),
        ("command until it goes on", ours.wall, bare.wall, WALL_BOUND),
    ):
        row = Row("pause", f"{kind}, {size} MB: {what}", "s", tuple(mine), "criu dump", tuple(theirs))
        yield replace(row, bound=bound) if judged else row
