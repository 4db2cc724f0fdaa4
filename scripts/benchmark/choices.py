"""Show what compression levels, dedup and cores give, with the same two image directories."""

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
class StoreSettings:
    """The settings with which images are stored."""

    level: int | None = None
    dedup: bool = True
    cores: int = CORES

    def __str__(self) -> str:
        """The level, and everything that is not the default."""
        level = "level -1 or 1" if self.level is None else f"level {self.level}"
        return level + ("" if self.dedup else ", no dedup") + ("" if self.cores == CORES else ", 1 core")


VARIANTS = (
    *(StoreSettings(level) for level in LEVELS),
    StoreSettings(dedup=False),
    StoreSettings(cores=1),
    StoreSettings(level=3, cores=1),
)


def choices(setting: Setting) -> Iterator[Choice]:
    """Return a line for each target, of the first size, and for each setting."""
    for kind in setting.kinds:
        with setting.fresh() as directory:
            images = (directory / "first", directory / "second")
            with started(setting, kind, setting.sizes[0]) as target:
                bare_dump(setting, target.pid, images[0])
                target.write(WRITTEN_BETWEEN)
                bare_dump(setting, target.pid, images[1])
            samples: defaultdict[StoreSettings, list[dict[str, float]]] = defaultdict(list)
            for _ in range(setting.runs):
                for variant in VARIANTS:
                    samples[variant].append(_measure(setting, variant, images))
            for variant, found in samples.items():
                middle = {name: median(sample[name] for sample in found) for name in found[0]}
                yield Choice(f"{kind}, {setting.sizes[0]} MB", str(variant), variant == StoreSettings(), **middle)


def _measure(setting: Setting, variant: StoreSettings, images: tuple[Path, Path]) -> dict[str, float]:
    """Measure in a separate process, so that its cores and patches end with it."""
    with setting.fresh() as directory:
        level = () if variant.level is None else ("--level", str(variant.level))
        words = [*level, "--cores", str(variant.cores), *(() if variant.dedup else ("--no-dedup",))]
        output = run([sys.executable, "-m", "benchmark.store_once", *words, directory, *images])
    found: dict[str, float] = json.loads(output)
    return found
