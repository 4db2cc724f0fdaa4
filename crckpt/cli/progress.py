"""A progress bar on stderr, where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from crckpt.ops.context import Progress, ignore_progress


@contextmanager
def progress_bar(
    doing: str, *, as_json: bool, before: str | None = None, program_follows: bool = False
) -> Iterator[Progress]:
    """Give a callback that draws a bar; it does nothing if stderr is no terminal or JSON was asked for.

    The bar is labelled `before` until the first call, then `doing`. With `program_follows` it is removed as soon as
    everything is done, else at the end of the block.
    """
    if as_json or not sys.stderr.isatty():
        yield ignore_progress
        return
    # Slow to load, and needed only where a person watches.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Bytes(DownloadColumn):
        """Nothing until the total is known."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    columns = (TextColumn("{task.description}"), BarColumn(), Bytes(), TimeRemainingColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(before or doing, total=None)

    def draw(done: int, total: int) -> None:
        bar.update(task, description=doing, completed=done, total=total)
        if program_follows and done >= total:
            # Else the bar would wipe away what the program writes to this terminal.
            stop()

    def stop() -> None:
        # A terminal that has gone does not matter.
        with suppress(OSError):
            bar.stop()

    try:
        with suppress(OSError):
            bar.start()
        yield draw
    finally:
        # Not earlier: a terminal that takes nothing (^S) blocks here.
        stop()
