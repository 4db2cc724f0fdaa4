"""A progress bar on stderr, where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from crckpt.cli.output import form
from crckpt.ops.context import Progress, ignore_progress


@contextmanager
def progress_bars(*steps: str, program_follows: bool = False, waits: bool = False) -> Iterator[tuple[Progress, ...]]:
    """Give a callback for each step: it draws the bar, labelled with the step that reports; at first with the first.

    They do nothing if stderr is no terminal, with --json and with --quiet. With `program_follows` the bar is removed as
    soon as everything is done, else at the end of the block. With `waits` it appears with the first report: until
    then another program may ask the user something.
    """
    if form.as_json or form.is_quiet or not sys.stderr.isatty():
        yield (ignore_progress,) * len(steps)
        return
    # Slow to load, and needed only where a person watches.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    # In here, because its base is loaded only now.
    class Bytes(DownloadColumn):
        """Nothing until the total is known."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    # As in messages: MiB of 1024 KiB.
    columns = (TextColumn("{task.description}"), BarColumn(), Bytes(binary_units=True), TimeRemainingColumn())
    # transient: the result follows in its place.
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(steps[0], total=None)

    is_started = False

    def make_callback(step: str) -> Progress:
        def draw(done: int, total: int) -> None:
            start()
            bar.update(task, description=step, completed=done, total=total)
            if program_follows and done >= total:
                # Else the bar would wipe away what the program writes to this terminal.
                stop()

        return draw

    def start() -> None:
        nonlocal is_started
        if not is_started:
            is_started = True
            with suppress(OSError):
                bar.start()

    def stop() -> None:
        # A terminal that has gone does not matter.
        with suppress(OSError):
            bar.stop()

    try:
        if not waits:
            start()
        yield tuple(map(make_callback, steps))
    finally:
        # Not earlier: a terminal that takes nothing (^S) blocks here.
        stop()
