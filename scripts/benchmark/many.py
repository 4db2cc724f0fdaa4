"""Measure commands on a store with ten thousand checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from benchmark.commands import seconds
from benchmark.report import Row
from benchmark.setting import WRITTEN_BETWEEN, Setting
from benchmark.targets import started
from crckpt.model import JobName
from crckpt.store import Repository
from crckpt.store.format.manifest import seal
from crckpt.store.layout import manifest_name

CHECKPOINTS = 10_000
JOBS = 20
LIST_BOUND_S = 1.0
GC_BOUND_S = 5.0


def rows(setting: Setting) -> Iterator[Row]:
    """Return a row for each command."""
    with setting.fresh() as directory:
        store = directory / "store"
        with started(setting, setting.kinds[0], setting.sizes[0]) as target:
            # The second manifest names packs of both, as in a long series.
            for _ in range(2):
                setting.crckpt(store, "dump", str(target.pid), "job")
                target.write(WRITTEN_BETWEEN)
        _multiply(store)
        listed: list[float] = []
        collected: list[float] = []
        for _ in range(setting.runs):
            listed.append(seconds(partial(setting.crckpt, store, "list")))
            collected.append(seconds(partial(setting.crckpt, store, "gc", "--dry-run")))
        found = len(setting.document(store, "list")["checkpoints"])
        assert found == CHECKPOINTS, f"crckpt list shows {found} checkpoints"
    yield Row("many", f"{CHECKPOINTS} checkpoints: list", "s", tuple(listed), bound=LIST_BOUND_S)
    yield Row("many", f"{CHECKPOINTS} checkpoints: gc --dry-run", "s", tuple(collected), bound=GC_BOUND_S)


def _multiply(store: Path) -> None:
    """Add copies of the newest checkpoint with other ids until there are as many as wanted."""
    repository = Repository.open(store)
    have = repository.checkpoints()
    model = have[-1]
    for number in range(CHECKPOINTS - len(have)):
        created = model.created + timedelta(seconds=number + 1)
        job = JobName(f"job-{number % JOBS}")
        checkpoint, manifest = seal(replace(model, job=job, created=created, note=f"number {number}"))
        path = repository.root / manifest_name(checkpoint.id)
        path.parent.mkdir(mode=0o700)
        path.touch(mode=0o600)
        path.write_bytes(manifest)
