"""Store two image directories in one way, get the second back, and say as JSON what that took: see `choices.py`."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import xxhash

from benchmark.commands import seconds
from crckpt.model import Host, JobName, Options
from crckpt.store import Checkpoint, NewCheckpoint, Repository, ingest, materialise

_HOST = Host("here", "", "x86_64", 4096, (), "", "")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--no-dedup", action="store_true")
    parser.add_argument("directory", type=Path)
    parser.add_argument("images", type=Path, nargs=2)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.no_dedup:
        _let_no_pages_be_equal()
    repository = Repository.open(options.directory / "store", create=True)
    made: list[Checkpoint] = []

    def store(images: Path) -> None:
        made.append(ingest(repository, images, _new(), compress=options.level))

    first_s, second_s = (seconds(partial(store, images)) for images in options.images)
    first, second = made
    if options.no_dedup and (first.statistics.shared_pages or second.statistics.shared_pages):
        raise SystemExit("dedup is still on: fingerprints are not made with xxhash.xxh3_128_digest any more")
    back = options.directory / "back"
    back.mkdir()
    unpack_s = seconds(partial(materialise, repository, second, back))
    found = {
        "first_s": first_s,
        "first_bytes": first.statistics.stored_bytes,
        "second_s": second_s,
        "second_bytes": second.statistics.stored_bytes,
        "unpack_s": unpack_s,
    }
    sys.stdout.write(json.dumps(found))


def _let_no_pages_be_equal() -> None:
    """crckpt has no switch for this: pages are equal if their fingerprints are, and here no two ever are."""
    number = itertools.count(1)
    xxhash.xxh3_128_digest = lambda *_: next(number).to_bytes(16, "little")


def _new() -> NewCheckpoint:
    return NewCheckpoint(JobName("job"), datetime.now(UTC), _HOST, Options(), (), 0.0, 0.0, b"{}")


if __name__ == "__main__":
    main()
