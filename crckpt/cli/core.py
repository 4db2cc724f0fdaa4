"""`crckpt core`."""

from __future__ import annotations

import shlex
from pathlib import Path

from crckpt.cli import options
from crckpt.cli.format import count, short_id, size
from crckpt.cli.output import emit
from crckpt.cli.progress import progress_bars


def core(
    ref: str = options.REF,
    pid: int | None = options.argument("PID", "A process of the checkpoint.", default=None, shown="the root"),
    output: Path | None = options.option("--output -o FILE", "The file to write.", shown="core.PID"),
    force: bool = options.flag("--force", "Replace the file if it exists."),
) -> None:
    """Write a process of a checkpoint as an ELF core file, which gdb opens. Nothing is restored.

    To see the stack of a Python program: `py-spy dump --core FILE`, or `py-bt` in gdb where python3-dbg is installed.
    """
    # Slow to load, and needed neither for the help nor to complete a command line.
    from crckpt.ops.inspect.core import core as perform

    with progress_bars("writing") as (progress,):
        context = options.make_context(progress=progress)
        result = perform(context, ref, pid, output, force=force)
    lines = (
        f"wrote {result.path}: process {result.pid} ({result.comm}) of {short_id(result.id)}, "
        f"{count(result.threads, 'thread')}, {size(result.held)} of memory\n",
        f"open it with: gdb {shlex.join((result.executable, str(result.path)))}\n",
    )
    emit(result, lines)
