"""`crckpt core`: a process of a checkpoint as a core file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from crckpt.cli import options
from crckpt.cli.progress import shown
from crckpt.cli.render import Shown, count, emit, short, size


def core(
    ref: options.Ref,
    pid: Annotated[
        int | None, typer.Argument(help="A process of the checkpoint.", metavar="[PID]", show_default="the root")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write.", metavar="FILE", show_default="core.PID")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a process of a checkpoint as an ELF core file, which gdb opens. Nothing is restored.

    The calls of a Python program: py-spy dump --core FILE, or gdb's py-bt where python3-dbg is installed.
    """
    from crckpt.ops.inspect.core import core as perform

    with shown("writing", as_json=as_json) as progress:
        context = options.context(store, config=config, progress=progress)
        result = perform(context, ref, pid, output, force=force)

    def text() -> Iterator[str]:
        yield (
            f"{short(result.id)}: process {result.pid} {result.comm}, {count(result.threads, 'thread')}, "
            f"{size(result.held)} of memory, is in {result.path}\n"
        )
        yield f"look at it with: gdb {shlex.join((result.executable, str(result.path)))}\n"

    emit("core", Shown(result, text()), as_json=as_json)
