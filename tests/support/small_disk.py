"""A small file system that a test can fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command import Crckpt


@contextmanager
def mounted_disk(directory: Path, size: str, *options: str) -> Iterator[Path]:
    """Mount a tmpfs of this size on the directory, which is made if necessary."""
    directory.mkdir(exist_ok=True)
    words = ",".join((f"size={size}", "mode=700", *options))
    subprocess.run(["mount", "-t", "tmpfs", "-o", words, "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def store_on_disk(store: Path, size: str, *options: str) -> Iterator[Crckpt]:
    """crckpt with a store that is such a file system."""
    with mounted_disk(store, size, *options):
        yield Crckpt(store)
