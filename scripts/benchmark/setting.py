"""What all groups of rows share: which programs, what sizes, how often, and where."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.commands import run
from crckpt.store import Repository

MEBIBYTE = 1 << 20
COMMITTED_WITHIN_S = 120.0
WRITTEN_BETWEEN = 0.02
"""The share of pages that is written between two checkpoints: what programs under light load write in 10 s."""


@dataclass(frozen=True)
class Setting:
    """`command` is crckpt, `criu` the CRIU that it uses and that is run bare, `work` a directory of our own.

    `sizes` are in MiB, `interval` is in seconds, `kinds` name targets.
    """

    command: Path
    criu: Path
    work: Path
    sizes: tuple[int, ...]
    runs: int
    kinds: tuple[str, ...]
    interval: float

    @property
    def many_runs(self) -> int:
        """For what is short, and so is noisy, and is cheap to repeat; or is judged by a few percent."""
        return 3 * self.runs

    def crckpt(self, store: Path, *words: str | Path) -> str:
        """Run crckpt to its end; what it said. Raises Failed."""
        return run([self.command, *words], {"CRCKPT_STORE": str(store), "CRCKPT_CRIU": str(self.criu)})

    def document(self, store: Path, *words: str | Path) -> dict[str, Any]:
        """Run crckpt to its end; the result in its JSON document."""
        result: dict[str, Any] = json.loads(self.crckpt(store, *words, "--json"))["result"]
        return result

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """An empty directory, gone afterwards; what others have written before is on disk by then."""
        with tempfile.TemporaryDirectory(dir=self.work) as name:
            os.sync()
            yield Path(name)


def say(text: str) -> None:
    """Tell whoever waits."""
    sys.stderr.write(f"{text}\n")


def disk_bytes(directory: Path) -> int:
    """The bytes of all files below."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_dir())


def wait_committed(store: Path) -> None:
    """Wait until nobody adds to the store any more, which one of ours that has returned already may still do."""
    with Repository.open(store).exclusive(timeout=COMMITTED_WITHIN_S):
        pass
