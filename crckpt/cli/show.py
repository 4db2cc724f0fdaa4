"""`crckpt show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crckpt.cli import options
from crckpt.cli.render import Shown, duration, emit, escaped, moment, size, summary, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from crckpt.ops.show import Detail, ProcessDetail


def show(
    ref: options.Ref,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what a checkpoint holds: the process tree, memory, files, sockets, options, host, sizes and times."""
    from crckpt.ops.show import show as perform

    detail = perform(options.context(store, config=config), ref)
    checkpoint = detail.checkpoint
    document = {
        **summary(checkpoint),
        "tags": detail.tags,
        "options": checkpoint.options,
        "host": checkpoint.host,
        "tree": detail.processes,
        "files": detail.files,
        "sockets": detail.sockets,
    }
    emit("show", Shown(document, lambda console: _draw(console, detail)), as_json=as_json)


def _draw(console: Console, detail: Detail) -> None:
    checkpoint, numbers = detail.checkpoint, detail.checkpoint.statistics
    facts = (
        ("id", checkpoint.id),
        ("job", checkpoint.job + "".join(f"  :{tag}" for tag in detail.tags)),
        ("created", moment(checkpoint.created) + ("  (the tree was stopped)" if checkpoint.stopped else "")),
        ("parent", checkpoint.parent or "none"),
        ("note", checkpoint.note or ""),
        ("host", f"{checkpoint.host.hostname}, kernel {checkpoint.host.kernel}, {checkpoint.host.arch}"),
        ("CRIU", f"{checkpoint.host.criu_version} {' '.join(detail.criu_options)}"),
        (
            "times",
            f"frozen {duration(numbers.frozen_ms)}, dump {duration(numbers.dump_ms)}, "
            f"commit {duration(numbers.commit_ms)}",
        ),
        (
            "sizes",
            f"{size(numbers.raw_bytes)} of images, {size(numbers.new_bytes)} new, {size(numbers.stored_bytes)} stored",
        ),
        ("pages", f"{numbers.pages} in all, {numbers.zero_pages} zero, {numbers.shared_pages} already stored"),
    )
    console.print(table(("", ""), ((f"[bold]{name}[/]", escaped(value)) for name, value in facts if value)))
    console.print(_tree(detail.processes))
    if detail.files:
        rows = (
            (escaped(file.path), file.state, size(file.bytes) if file.bytes is not None else "", escaped(file.use))
            for file in detail.files
        )
        console.print(table(("file", "", "size", "used by"), rows, right=frozenset({"size"})))
    if detail.sockets:
        console.print(table(("socket",), ((escaped(title),) for title in detail.sockets)))


def _tree(processes: tuple[ProcessDetail, ...]) -> Tree:
    from rich.tree import Tree

    drawn: dict[int, Tree] = {}
    root = Tree("[bold]processes[/]")
    for process in processes:
        above = drawn.get(process.ppid, root)
        threads = f", {process.threads} threads" if process.threads > 1 else ""
        state = "" if process.state == "alive" else f", {process.state}"
        line = f"{process.pid} [bold]{escaped(process.comm)}[/]{threads}{state}, {size(process.memory_bytes)}"
        drawn[process.pid] = above.add(f"{line}  [dim]{escaped(process.command_line)}[/]")
    return root
