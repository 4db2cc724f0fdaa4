"""Compare a restore with bare CRIU's restore of raw images, with a warm and with a cold page cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmark import disk
from benchmark.commands import seconds
from benchmark.peers import bare_dump, bare_restore
from benchmark.report import Row
from benchmark.setting import Setting
from benchmark.targets import Target, started

WARM_BOUND = 2.0
COLD_BOUND = 1.0


def rows(setting: Setting) -> Iterator[Row]:
    """Return three rows for each target and size; two if the disk cannot be limited."""
    for size in setting.sizes:
        for kind in setting.kinds:
            yield from _rows(setting, kind, size)


def _rows(setting: Setting, kind: str, size: int) -> Iterator[Row]:
    with setting.fresh() as directory, started(setting, kind, size) as target:
        store, images = directory / "store", directory / "images"
        bare_dump(setting, target.pid, images)
        setting.crckpt(store, "dump", str(target.pid), "job")
        from_store = partial(setting.crckpt, store, "restore", "job", "--detach")
        from_images = partial(bare_restore, setting, images)

        def row(cache: str, prepare: Callable[[], None], bound: float | None) -> Row:
            ours: list[float] = []
            bare: list[float] = []
            for _ in range(setting.runs):
                ours.append(time_restore(target, prepare, from_store))
                bare.append(time_restore(target, prepare, from_images))
            what = f"{kind}, {size} MB: {cache}"
            return Row("restore", what, "s", tuple(ours), "criu restore", tuple(bare), bound)

        yield row("warm cache", partial(_warm, directory), WARM_BOUND)
        # With a disk as fast as memory no cache is cold: then only the limited disk has a bound.
        yield row("cold cache", _cold, None if disk.can_be_limited(directory) else COLD_BOUND)
        if disk.can_be_limited(directory):
            with disk.limited(directory):
                yield row(f"cold, disk limited to {disk.USUAL} MiB/s", _cold, COLD_BOUND)


def time_restore(target: Target, prepare: Callable[[], None], work: Callable[[], object]) -> float:
    """End the target, `prepare`, and return how many seconds `work` takes to bring it back."""
    target.end()
    prepare()
    took = seconds(work)
    target.wait_alive()
    return took


def _warm(directory: Path) -> None:
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                while file.read(1 << 24):
                    pass


def _cold() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
