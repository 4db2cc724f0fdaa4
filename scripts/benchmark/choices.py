"""Why the defaults are what they are: levels, dedup and cores, on the same two image directories."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmark.commands import run
from benchmark.peers import bare_dump
from benchmark.report import Choice
from benchmark.setting import WRITTEN_BETWEEN, Setting
from benchmark.targets import started

LEVELS = (None, -5, -3, -1, 1, 3, 6)
CORES = 2


@dataclass(frozen=True)
class Way:
    """A way to store."""

    level: int | None = None
    dedup: bool = True
    cores: int = CORES

    def __str__(self) -> str:
        """Only what is not the default, but the level always."""
        level = "level -1 or 1" if self.level is None else f"level {self.level}"
        return level + ("" if self.dedup else ", no dedup") + ("" if self.cores == CORES else ", 1 core")


WAYS = (*(Way(level) for level in LEVELS), Way(dedup=False), Way(cores=1), Way(level=3, cores=1))


def choices(setting: Setting) -> Iterator[Choice]:
    """A line for each target, of the first size, and way."""
    for kind in setting.kinds:
        with setting.fresh() as directory:
            images = (directory / "first", directory / "second")
            with started(setting, kind, setting.sizes[0]) as target:
                bare_dump(setting, target.pid, images[0])
                target.write(WRITTEN_BETWEEN)
                bare_dump(setting, target.pid, images[1])
            samples: defaultdict[Way, list[dict[str, float]]] = defaultdict(list)
            for _ in range(setting.runs):
                for way in WAYS:
                    samples[way].append(_measured(setting, way, images))
            for way, found in samples.items():
                middle = {name: median(sample[name] for sample in found) for name in found[0]}
                yield Choice(f"{kind}, {setting.sizes[0]} MB", str(way), way == Way(), **middle)


def _measured(setting: Setting, way: Way, images: tuple[Path, Path]) -> dict[str, float]:
    """In a process of its own, so that cores and what was changed for it end with it."""
    with setting.fresh() as directory:
        level = () if way.level is None else ("--level", str(way.level))
        words = [*level, "--cores", str(way.cores), *(() if way.dedup else ("--no-dedup",))]
        said = run([sys.executable, "-m", "benchmark.one_way", *words, directory, *images])
    found: dict[str, float] = json.loads(said)
    return found
