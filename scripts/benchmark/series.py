"""Compare the size of ten checkpoints of a program under light writes with that of other tools' repositories.

The tools save the same image directories, as `crckpt export` writes them, each time under the same path.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from benchmark.peers import CHUNKING
from benchmark.report import Row
from benchmark.setting import WRITTEN_BETWEEN, Setting, disk_bytes
from benchmark.targets import Target, started

LENGTH = 10
OF_ONE_BOUND = 1.3
OF_PEERS_BOUND = 0.2
KINDS = ("redis", "python")
_BURSTS = 10


def rows(setting: Setting) -> Iterator[Row]:
    """Return three rows for each target and size. A series is measured once: bytes are not noisy."""
    for size in setting.sizes:
        for kind in (kind for kind in setting.kinds if kind in KINDS):
            with started(setting, kind, size) as target:
                yield from _rows(setting, target, f"{kind}, {size} MB: ten checkpoints")


def _rows(setting: Setting, target: Target, what: str) -> Iterator[Row]:
    with setting.fresh() as directory:
        store, images = directory / "store", directory / "images"
        for peer in CHUNKING:
            peer.prepare(directory / peer.name)
        sizes: list[int] = []
        for number in range(LENGTH):
            if number:
                _write_lightly(target, setting.interval)
            setting.crckpt(store, "dump", str(target.pid), "job")
            sizes.append(disk_bytes(store))
            setting.crckpt(store, "export", "job", images)
            for peer in CHUNKING:
                peer.save(directory / peer.name, images, number)
            shutil.rmtree(images)
        first, last = float(sizes[0]), float(sizes[-1])
        yield Row("series", what, "B", (last,), "the first", (first,), OF_ONE_BOUND)
        for peer in CHUNKING:
            theirs = float(disk_bytes(directory / peer.name))
            yield Row("series", what, "B", (last,), peer.name, (theirs,), OF_PEERS_BOUND)


def _write_lightly(target: Target, interval: float) -> None:
    """Make the same writes for any interval."""
    for _ in range(_BURSTS):
        target.write(WRITTEN_BETWEEN / _BURSTS)
        time.sleep(interval / _BURSTS)
