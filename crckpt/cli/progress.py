"""A progress bar on stderr, where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from crckpt.ops.context import Progress, silent


@contextmanager
def shown(doing: str, *, as_json: bool, before: str | None = None) -> Iterator[Progress]:
    """A callback that draws a bar; it does nothing where stderr is no terminal or JSON was asked for.

    Until it is called first, that which comes `before` is being done.
    """
    if as_json or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(before or doing, total=None)

        def draw(done: int, total: int) -> None:
            bar.update(task, description=doing, completed=done, total=total)
            if done >= total:
                # What a restored program writes to this terminal must not be wiped away with the bar.
                bar.stop()

        yield draw
