"""How long a restore takes: from the store, and of raw images by bare CRIU; with a warm and with a cold page cache."""

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
    """Three rows for each target and size; two where the disk cannot be held to a rate."""
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
                ours.append(restored(target, prepare, from_store))
                bare.append(restored(target, prepare, from_images))
            what = f"{kind}, {size} MB: {cache}"
            return Row("restore", what, "s", tuple(ours), "criu restore", tuple(bare), bound)

        yield row("warm cache", partial(_warm, directory), WARM_BOUND)
        # A disk as quick as memory makes no cache cold: then the one that is held to a rate is judged.
        yield row("cold cache", _cold, None if disk.can_be_held(directory) else COLD_BOUND)
        if disk.can_be_held(directory):
            with disk.held(directory):
                yield row(f"cold, disk held to {disk.USUAL} MiB/s", _cold, COLD_BOUND)


def restored(target: Target, prepare: Callable[[], None], work: Callable[[], object]) -> float:
    """How many seconds `work` takes, which brings the target back that is ended and `prepare`d for before."""
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
