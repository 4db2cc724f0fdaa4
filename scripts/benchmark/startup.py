"""Measure commands that have little to do, and the part of a dump outside CRIU and the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from benchmark.commands import seconds
from benchmark.report import Row
from benchmark.setting import Setting
from benchmark.targets import started

VERSION_BOUND_S = 0.05
SMALL_BOUND_S = 0.25
DUMP_BOUND_S = 0.4
# MiB of memory besides what Python needs.
_SMALL = 1


def rows(setting: Setting) -> Iterator[Row]:
    """Return a row for each command."""
    commands = {
        "--version": (("--version",), VERSION_BOUND_S),
        "--help": (("--help",), SMALL_BOUND_S),
        "list": (("list",), SMALL_BOUND_S),
    }
    samples: dict[str, list[float]] = {name: [] for name in (*commands, "dump")}
    with setting.fresh() as directory, started(setting, "python", _SMALL) as target:
        for _ in range(setting.many_runs):
            began = time.monotonic()
            done = setting.document(directory / "store", "dump", str(target.pid), "job")
            spent = done["checkpoint"]["statistics"]
            samples["dump"].append(time.monotonic() - began - (spent["dump_ms"] + spent["commit_ms"]) / 1000)
            for name, (words, _) in commands.items():
                samples[name].append(seconds(partial(setting.crckpt, directory / "store", *words)))
    for name, (_, bound) in commands.items():
        yield Row("startup", f"crckpt {name}", "s", tuple(samples[name]), bound=bound)
    yield Row("startup", "crckpt dump, without CRIU and the store", "s", tuple(samples["dump"]), bound=DUMP_BOUND_S)
