"""Report how much of the tree's memory CRIU has copied: it reports nothing itself, but its images grow."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crckpt.ops.context import Progress, ignore_progress

_INTERVAL_S = 0.1


@contextmanager
def copying_reported(images: Path, memory: int, progress: Progress) -> Iterator[Callable[[], None]]:
    """While the block runs, report how many of `memory` bytes are in `images`. Gives a function that ends that."""
    if progress is ignore_progress or memory == 0:
        yield lambda: None
        return
    is_over = threading.Event()

    def report() -> None:
        progress(0, memory)
        while not is_over.wait(_INTERVAL_S):
            copied = 0
            # CRIU makes the files while we look.
            with suppress(OSError), os.scandir(images) as entries:
                for entry in entries:
                    with suppress(OSError):
                        copied += entry.stat(follow_symlinks=False).st_size if entry.name.startswith("pages-") else 0
            # The tree may have grown since its memory was measured.
            progress(min(copied, memory), memory)

    thread = threading.Thread(target=report, daemon=True)

    def end() -> None:
        is_over.set()
        thread.join()

    thread.start()
    try:
        yield end
    finally:
        end()
