"""How long a restore takes: from the store, and of raw images by bare CRIU; with a warm and with a cold page cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmark.commands import seconds
from benchmark.peers import bare_dump, bare_restore
from benchmark.report import Row
from benchmark.setting import Setting
from benchmark.targets import Target, started

WARM_BOUND = 2.0
COLD_BOUND = 1.0


def rows(setting: Setting) -> Iterator[Row]:
    """Two rows for each target and size."""
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
        for cache, prepare, bound in (
            ("warm", partial(_warm, directory), WARM_BOUND),
            ("cold", _cold, COLD_BOUND),
        ):
            ours: list[float] = []
            bare: list[float] = []
            for _ in range(setting.runs):
                ours.append(_restored(target, prepare, from_store))
                bare.append(_restored(target, prepare, from_images))
            yield Row(
                "restore", f"{kind}, {size} MB: {cache} cache", "s", tuple(ours), "criu restore", tuple(bare), bound
            )


def _restored(target: Target, prepare: Callable[[], None], work: Callable[[], object]) -> float:
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
