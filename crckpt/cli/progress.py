"""A progress bar on stderr, where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from crckpt.ops.context import Progress, silent


@contextmanager
def shown(doing: str, *, as_json: bool, before: str | None = None, program_follows: bool = False) -> Iterator[Progress]:
    """A callback that draws a bar; it does nothing where stderr is no terminal or JSON was asked for.

    Until it is called first, that which comes `before` is being done. If a `program_follows` that may write to this
    terminal, the bar is gone as soon as all is done. Else it goes with the block, so that a terminal that takes nothing
    (^S) keeps nobody waiting before. One that is gone does not matter.
    """
    if as_json or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Bytes(DownloadColumn):
        """Nothing until it is known how many there are."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    columns = (TextColumn("{task.description}"), BarColumn(), Bytes(), TimeRemainingColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(before or doing, total=None)

    def draw(done: int, total: int) -> None:
        bar.update(task, description=doing, completed=done, total=total)
        if program_follows and done >= total:
            # What the program writes must not be wiped away with the bar.
            stop()

    def stop() -> None:
        with suppress(OSError):
            bar.stop()

    try:
        with suppress(OSError):
            bar.start()
        yield draw
    finally:
        stop()
