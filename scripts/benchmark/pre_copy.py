"""Measure the freeze by `dump --pre-copy` of a target that writes all the time, and the cost of tracking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any, Final, NamedTuple

import psutil

from benchmark.peers import bare_dump
from benchmark.report import Row
from benchmark.setting import MEBIBYTE, Setting
from benchmark.targets import Board, Target, running, wait_for, writer

SHARES: Final = (0.001, 0.01, 0.1)
"""Shares of the target's pages that it writes per second."""

BOUNDS: Final = {1024: 0.15, 4096: 0.05}
"""The bound by MiB, as a share of bare CRIU's freeze, with one page in a hundred written per second."""

FLOOR_BOUND: Final = 3.0
FLOOR_S: Final = 0.008, 0.042
"""The bound for a round: to stop a process, read its maps and find its written pages, fixed and per GiB."""

SLOWDOWN_BOUND: Final = 1.05
BYTES_BOUND: Final = 1.2
USUAL: Final = 0.01
PROCESSES: Final = 50
_PAGE: Final = 4096
_SECONDS: Final = 10


def rows(setting: Setting) -> Iterator[Row]:
    """Return for each size three shares, the slowdown by two measures, and bytes; then a tree of many processes."""
    for size in setting.sizes:
        with running(setting, writer(), size) as target:
            for share in SHARES:
                yield from _freeze(setting, target, size, share)
            for option in ("--pre-copy", "--incremental"):
                yield from _slowdown(setting, target, size, option)
            yield _bytes(setting, target, size)
    with running(setting, writer(PROCESSES - 1), setting.sizes[0]) as target:
        yield from _freeze(setting, target, setting.sizes[0], USUAL, processes=PROCESSES)


def _freeze(setting: Setting, target: Target, size: int, share: float, processes: int = 1) -> Iterator[Row]:
    """Measure the freeze of a dump and the longest freeze of a round, as the target sees them."""
    ours, rounds, bare = [], [], []
    board = _board(target)
    for _ in range(setting.runs):
        board.ask(pages=round(share * size * MEBIBYTE / _PAGE))
        with setting.fresh() as directory:
            store = directory / "store"
            began = time.monotonic()
            made = setting.document(store, "dump", str(target.pid), "job", "--pre-copy")["checkpoint"]
            frozen = target.gap(*_find_freeze(made))
            ours.append(frozen.length)
            rounds.append(target.gap(began, frozen.began).length)
            setting.crckpt(store, "ps", "--end", str(target.pid))
        with setting.fresh() as directory:
            began = time.monotonic()
            bare_dump(setting, target.pid, directory / "images")
            bare.append(target.gap(began, time.monotonic()).length)
    board.ask(pages=0)
    tree = f", {processes} processes" if processes > 1 else ""
    what = f"{size} MB{tree}, {share:.1%} written a second: stands still"
    bound = BOUNDS.get(size) if share == USUAL and processes == 1 else None
    yield Row("pre-copy", what, "s", tuple(ours), "criu dump", tuple(bare), bound)
    yield Row("pre-copy", f"{what}, for a round", "s", tuple(rounds), "criu dump", tuple(bare))
    if processes == 1:
        floor = FLOOR_S[0] + FLOOR_S[1] * size / 1024
        judged = size in BOUNDS and share <= USUAL
        yield Row("pre-copy", what, "s", tuple(ours), "floor", (floor,), FLOOR_BOUND if judged else None)


def _find_freeze(checkpoint: dict[str, Any]) -> tuple[float, float]:
    """Return start and end of a round's freeze in seconds of CLOCK_MONOTONIC; the round reports its middle."""
    middle = datetime.fromisoformat(checkpoint["created"]).timestamp() - time.time() + time.monotonic()
    half = checkpoint["statistics"]["frozen_ms"] / 2000
    return middle - half, middle + half


class _Done(NamedTuple):
    """The work of the target per second: units of work, and seconds of CPU time that it had for them."""

    work: float
    own: float


def _slowdown(setting: Setting, target: Target, size: int, option: str) -> Iterator[Row]:
    """Return how many times as long the target's work takes with tracking and a checkpoint in each interval.

    Units of work are what matters. But on a shared machine a second of an undisturbed core varies by 5 % from
    interval to interval, as much as the effect. So the CPU time that the target has left is measured too: without
    freezes, waits for a core, and the kernel's work for the tracker.
    """
    board = _board(target)
    board.ask(pages=round(USUAL * size * MEBIBYTE / _PAGE), works=True)
    alone, tracked = [], []
    with setting.fresh() as directory:
        dump = partial(setting.crckpt, directory / "store", "dump", str(target.pid), "job", option)
        for _ in range(setting.many_runs):
            alone.append(_read_done(target, setting.interval, lambda: None))
            dump()
            # More is written while that checkpoint is stored than in an interval: let the next dump take it.
            _read_done(target, setting.interval, dump)
            tracked.append(_read_done(target, setting.interval, dump))
            setting.crckpt(directory / "store", "ps", "--end", str(target.pid))
        alone.append(_read_done(target, setting.interval, lambda: None))
    board.ask(pages=0)
    # Measure before and after, in case the machine becomes slower.
    around = [_Done(*map(fmean, zip(*both, strict=True))) for both in pairwise(alone)]
    what = f"{size} MB, {USUAL:.0%} written a second, {option} each {setting.interval:g} s: work takes"
    own = (before.own / during.own for before, during in zip(around, tracked, strict=True))
    work = (before.work / during.work for before, during in zip(around, tracked, strict=True))
    yield Row("pre-copy", f"{what}, by the time it has for it", "x", tuple(own), bound=SLOWDOWN_BOUND)
    yield Row("pre-copy", f"{what}, by work done", "x", tuple(work), bound=SLOWDOWN_BOUND)


def _read_done(target: Target, seconds: float, meanwhile: Callable[[], object]) -> _Done:
    process = psutil.Process(target.pid)
    began, before, used = time.monotonic(), target.load.beats(), process.cpu_times().user
    meanwhile()
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    took = time.monotonic() - began
    return _Done((target.load.beats() - before) / took, (process.cpu_times().user - used) / took)


def _bytes(setting: Setting, target: Target, size: int) -> Row:
    """Compare the bytes that an incremental checkpoint stores, before compression, with those that were written."""
    stored, written = [], []
    with setting.fresh() as directory:
        store = directory / "store"
        words = ("dump", str(target.pid), "job", "--incremental")
        setting.document(store, *words)
        for _ in range(setting.runs):
            pages = _measure_written(target, round(USUAL * size * MEBIBYTE / _PAGE))
            found = setting.document(store, *words)["checkpoint"]["statistics"]
            stored.append(float(found["new_bytes"] + found["copied_bytes"]))
            written.append(float(pages * _PAGE))
        setting.crckpt(store, "ps", "--end", str(target.pid))
    what = f"{size} MB: an incremental checkpoint stores"
    return Row("pre-copy", what, "B", tuple(stored), "written", tuple(written), BYTES_BOUND)


def _measure_written(target: Target, rate: int) -> int:
    """Let the target write for about ten seconds; return how many pages it has written."""
    board = _board(target)
    before = board.written
    board.ask(pages=rate)
    wait_for(lambda: board.written - before >= _SECONDS * rate, "pages to be written")
    board.ask(pages=0)
    target.wait_alive()
    return board.written - before


def _board(target: Target) -> Board:
    assert isinstance(target.load, Board)
    return target.load
