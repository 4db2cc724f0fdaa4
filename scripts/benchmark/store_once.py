"""Store two image directories with given settings, read the second back, print the cost as JSON. See `choices.py`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmark.commands import seconds
from crckpt.model import DumpOptions, Host, JobName
from crckpt.store import Checkpoint, NewCheckpoint, Repository, ingest, materialise

_HOST = Host("here", "", "x86_64", 4096, (), "", "")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--no-dedup", action="store_true")
    parser.add_argument("directory", type=Path)
    parser.add_argument("images", type=Path, nargs=2)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    repository = Repository.open(options.directory / "store", create=True)
    made: list[Checkpoint] = []

    def store(images: Path) -> None:
        made.append(ingest(repository, images, new(), compress=options.level, dedup=not options.no_dedup))

    first_s, second_s = (seconds(partial(store, images)) for images in options.images)
    first, second = made
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


def new() -> NewCheckpoint:
    """Return a checkpoint with placeholder data."""
    return NewCheckpoint(JobName("job"), datetime.now(UTC), _HOST, DumpOptions(), (), 0.0, 0.0, b"{}")


if __name__ == "__main__":
    main()
