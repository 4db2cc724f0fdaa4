"""Compare the restore of the last of a hundred incremental checkpoints with that of a full one.

One page in a hundred is written between two checkpoints. Both are also exported: that is the store's part alone,
without a bound.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmark.commands import Failed, seconds
from benchmark.report import Row
from benchmark.restore import time_restore
from benchmark.setting import Setting
from benchmark.targets import Target, started
from crckpt.store import Repository

LENGTH = 100
WRITTEN = 0.01
BOUND = 1.2
KINDS = ("redis", "python")


def rows(setting: Setting) -> Iterator[Row]:
    """Return two rows for each target, of the first size."""
    for kind in (kind for kind in setting.kinds if kind in KINDS):
        with setting.fresh() as directory, started(setting, kind, setting.sizes[0]) as target:
            yield from _rows(setting, target, directory, f"{kind}, {setting.sizes[0]} MB: last of {LENGTH}")


def _rows(setting: Setting, target: Target, directory: Path, what: str) -> Iterator[Row]:
    chain, full = directory / "chain", directory / "full"
    for number in range(LENGTH):
        if number:
            target.write(WRITTEN)
        setting.crckpt(chain, "dump", "--incremental", str(target.pid), "job")
    setting.crckpt(full, "dump", "--no-incremental", str(target.pid), "job")
    if not Repository.open(chain).checkpoints()[-1].statistics.inherited_pages:
        raise Failed(f"{what} is not incremental; what stands against it: crckpt dump --incremental says it")

    def row(doing: str, measured: Callable[[Path], float], bound: float | None = None) -> Row:
        ours: list[float] = []
        of_full: list[float] = []
        for _ in range(setting.many_runs):
            ours.append(measured(chain))
            of_full.append(measured(full))
        return Row("chain", f"{what}: {doing}", "s", tuple(ours), "a full one", tuple(of_full), bound)

    def restore(store: Path) -> float:
        return time_restore(target, lambda: None, partial(setting.crckpt, store, "restore", "job", "--detach"))

    def export(store: Path) -> float:
        images = directory / "images"
        took = seconds(partial(setting.crckpt, store, "export", "job", images))
        shutil.rmtree(images)
        return took

    yield row("restore", restore, BOUND)
    yield row("export", export)
