"""Compare the time until a checkpoint is durable with that of `criu dump` and a backup of its image directory."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from benchmark.commands import seconds
from benchmark.peers import PEERS, bare_dump
from benchmark.report import Row
from benchmark.setting import WRITTEN_BETWEEN, Setting
from benchmark.targets import Target, started
from crckpt.store import Repository

BOUND = 1.0
_CHECKPOINTS = ("first", "second")
_OURS = "crckpt"

Samples = defaultdict[tuple[str, str], list[float]]


def rows(setting: Setting) -> Iterator[Row]:
    """Return a row for each target, size, first and second checkpoint, and peer."""
    for size in setting.sizes:
        for kind in setting.kinds:
            samples: Samples = defaultdict(list)
            with started(setting, kind, size) as target:
                for turn in range(setting.runs):
                    _measure(setting, target, turn, samples)
            for which in _CHECKPOINTS:
                for peer in PEERS:
                    ours, theirs = samples[which, _OURS], samples[which, peer.name]
                    what, name = f"{kind}, {size} MB: {which}", f"criu, {peer.name}"
                    yield Row("durable", what, "s", tuple(ours), name, tuple(theirs), BOUND)


def _measure(setting: Setting, target: Target, turn: int, samples: Samples) -> None:
    """Measure a first and a second checkpoint of all. All peers use one bare dump, and take turns in being first."""
    peers = PEERS[turn % len(PEERS) :] + PEERS[: turn % len(PEERS)]
    with setting.fresh() as directory:
        for peer in peers:
            peer.prepare(directory / peer.name)
        # Our store exists before, as their repositories do.
        Repository.open(directory / "store", create=True)
        for number, which in enumerate(_CHECKPOINTS):
            if number:
                target.write(WRITTEN_BETWEEN)
            dump = partial(setting.crckpt, directory / "store", "dump", str(target.pid), "job")
            # The next one must not wait for writes that another left to the disk.
            os.sync()
            samples[which, _OURS].append(seconds(dump))
            images = directory / "images"
            os.sync()
            dumped = seconds(partial(bare_dump, setting, target.pid, images))
            for peer in peers:
                saved = seconds(partial(peer.save, directory / peer.name, images, number))
                samples[which, peer.name].append(dumped + saved)
            shutil.rmtree(images)
