"""Compare the predictions of `crckpt doctor TARGET` with the dumps, for trees of many kinds."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmark.report import Row, Unit
from benchmark.setting import WRITTEN_BETWEEN, Setting
from benchmark.targets import Target, started, wait_for

BOUND: Final = 2.0
"""The bound of the predictions, as a factor up or down."""

OF_TREES: Final = 0.9
_SMALLEST: Final = 32

_NUMBERS: Final[tuple[tuple[str, Unit, str, float], ...]] = (
    ("frozen time", "s", "frozen_ms", 1e-3),
    ("dump time", "s", "dump_ms", 1e-3),
    ("commit time", "s", "commit_ms", 1e-3),
    ("image bytes", "B", "raw_bytes", 1.0),
    ("stored bytes", "B", "stored_bytes", 1.0),
)


@dataclass(frozen=True)
class Shape:
    """The arguments for `shapes.py`; all but `processes` are per process."""

    name: str
    processes: int = 1
    mebibytes: int = 0
    content: str = "random"
    descriptors: int = 0
    threads: int = 0


SHAPES: Final = (
    Shape("an idle process"),
    Shape("20 processes, 4 MB each", processes=20, mebibytes=4),
    Shape("100 processes", processes=100),
    Shape("900 descriptors", descriptors=900),
    Shape("100 threads", threads=100),
    Shape("random bytes, 128 MB", mebibytes=128),
    Shape("mostly zeros, 128 MB", mebibytes=128, content="zeros"),
)


def rows(setting: Setting) -> Iterator[Row]:
    """Return a row for each tree and number, then a row with the bound for each number: 9 of 10 trees must meet it."""
    found: list[Row] = []
    for row in _of_trees(setting):
        found.append(row)
        yield row
    for name, *_ in _NUMBERS:
        factors = [factor(row) for row in found if row.what.endswith(f": {name}")]
        what = f"{name}: what 9 of 10 of {len(factors)} trees keep within"
        yield Row("predictions", what, "x", (nine_of_ten(factors),), bound=BOUND)


def factor(row: Row) -> float:
    """Return the factor between prediction and result, up or down: 1 is right."""
    ratio = row.ratio
    return max(ratio, 1 / ratio) if ratio else math.inf


def nine_of_ten(factors: Sequence[float]) -> float:
    """Return the smallest factor that covers 9 of 10."""
    return sorted(factors)[math.ceil(OF_TREES * len(factors)) - 1]


def _of_trees(setting: Setting) -> Iterator[Row]:
    for size in sorted({_SMALLEST, *setting.sizes}):
        for kind in setting.kinds:
            with started(setting, kind, size) as target, setting.fresh() as directory:
                yield from _first_and_second(setting, target, directory / "store", f"{kind}, {size} MB")
    for shape in SHAPES:
        with _started(setting, shape) as pid, setting.fresh() as directory:
            yield from _compare(setting, pid, directory / "store", shape.name)


def _first_and_second(setting: Setting, target: Target, store: Path, what: str) -> Iterator[Row]:
    yield from _compare(setting, target.pid, store, f"{what}, first")
    target.write(WRITTEN_BETWEEN)
    yield from _compare(setting, target.pid, store, f"{what}, second")


def _compare(setting: Setting, pid: int, store: Path, what: str) -> Iterator[Row]:
    """Compare prediction and dump. Both use the default job, which is named after the program."""
    foreseen = setting.document(store, "doctor", str(pid))["prediction"]
    came = setting.document(store, "dump", str(pid))["checkpoint"]["statistics"]
    for name, unit, key, scale in _NUMBERS:
        ours, theirs = foreseen[key] * scale, came[key] * scale
        yield Row("predictions", f"{what}: {name}", unit, (ours,), "the dump", (theirs,))


@contextmanager
def _started(setting: Setting, shape: Shape) -> Iterator[int]:
    with setting.fresh() as directory:
        ready = directory / "ready"
        numbers = (shape.processes, shape.mebibytes, shape.content, shape.descriptors, shape.threads)
        null = subprocess.DEVNULL
        child = subprocess.Popen(
            [sys.executable, "-S", "-E", Path(__file__).with_name("shapes.py"), ready, *map(str, numbers)],
            stdin=null,
            stdout=null,
            stderr=null,
            cwd="/",
            start_new_session=True,
        )
        try:
            wait_for(lambda: ready.exists() or child.poll() is not None, shape.name)
            yield child.pid
        finally:
            # It is not reaped yet, so nobody else has its session's id.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
