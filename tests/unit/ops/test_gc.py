"""gc frees what removed checkpoints used, and a dry run predicts it."""

from __future__ import annotations

import threading

import pytest
from image_sets import packs

from crckpt.errors import StoreLocked
from crckpt.ops.context import Context
from crckpt.ops.gc import gc
from crckpt.ops.rm import rm
from crckpt.store import Checkpoint, Repository


def test_dry_run_of_gc_predicts_what_gc_removes(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    rm(context, (second.id,))
    result = gc(context, dry_run=True)
    assert len(packs(repository)) == 2
    assert gc(context) == result
    assert set(result.packs) == {use.digest for use in second.packs} - {use.digest for use in first.packs}
    assert len(packs(repository)) == 1


def test_gc_waits_for_readers(context: Context, repository: Repository) -> None:
    reading, is_done = threading.Event(), threading.Event()

    def read() -> None:
        with Repository.open(repository.root).shared():
            reading.set()
            is_done.wait()

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait()
    with pytest.raises(StoreLocked), repository.exclusive(timeout=0.1):
        gc(context)
    is_done.set()
    reader.join()
