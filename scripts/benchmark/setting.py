"""The settings of a run: programs, sizes, repetitions, directories."""

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
"""The share of pages that is written between two checkpoints: that of programs under light load in 10 s."""


@dataclass(frozen=True)
class Setting:
    """The settings. `command` is crckpt, `criu` the CRIU for it and for bare runs, `work` a private directory.

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
        """The repetitions of short measurements (noisy and cheap), and of those with a bound of a few percent."""
        return 3 * self.runs

    def crckpt(self, store: Path, *words: str | Path) -> str:
        """Run crckpt to its end; return its output. Raises Failed."""
        return run([self.command, *words], {"CRCKPT_STORE": str(store), "CRCKPT_CRIU": str(self.criu)})

    def document(self, store: Path, *words: str | Path) -> dict[str, Any]:
        """Run crckpt to its end; return the result in its JSON document."""
        result: dict[str, Any] = json.loads(self.crckpt(store, *words, "--json"))["result"]
        return result

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """Make an empty directory for the block; wait first until earlier writes are on disk."""
        with tempfile.TemporaryDirectory(dir=self.work) as name:
            os.sync()
            yield Path(name)


def say(text: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{text}\n")


def disk_bytes(directory: Path) -> int:
    """Return the bytes of all files below the directory."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_dir())


def wait_committed(store: Path) -> None:
    """Wait until nothing is added to the store: an `--async` dump may still do that."""
    with Repository.open(store).exclusive(timeout=COMMITTED_WITHIN_S):
        pass
