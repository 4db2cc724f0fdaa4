"""`crckpt show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crckpt.cli import options
from crckpt.cli.format import FoldedPath, align, creation_time, draw_table, duration, escape, size, title
from crckpt.cli.migrate_output import describe_move, move_document
from crckpt.cli.output import checkpoint_document, emit, pick

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from crckpt.ops.context import Context
    from crckpt.ops.inspect.descriptors import FileSection, SocketSection
    from crckpt.ops.inspect.sections import Environment, MapSection, ProcessSection, Sections, ThreadSection
    from crckpt.ops.inspect.show import CheckpointDetail, ProcessDetail
    from crckpt.ops.inspect.strings import Match


def show(
    ref: str = options.REF,
    ps: bool = options.flag("--ps", "The processes: tree, threads, states."),
    files: bool = options.flag("--files", "The open files of each process."),
    sockets: bool = options.flag("--sockets", "The sockets, and which processes have them open."),
    maps: bool = options.flag(
        "--maps",
        "The memory maps: how much was resident, and how much of that is dirty (not in a file, so stored in the "
        "checkpoint). CRIU does not record how much of a mapped file was resident.",
    ),
    env: bool = options.flag("--env", "The environment of each process. It may contain secrets."),
    strings: str | None = options.option(
        "--strings PATTERN", "Search the printable strings in memory for a regular expression."
    ),
) -> None:
    """Show what a checkpoint contains: the process tree, memory, files, sockets, options, host, sizes and times.

    With **--ps**, **--files**, **--sockets**, **--maps**, **--env** or **--strings**: show only these, in full.
    """
    # Slow to load, and needed neither for the help nor to complete a command line.
    from crckpt.ops.inspect.show import show as perform

    if ps or files or sockets or maps or env or strings is not None:
        wanted = {"ps": ps, "files": files, "sockets": sockets, "maps": maps, "env": env}
        _sections(options.make_context(), ref, wanted, strings)
        return
    detail = perform(options.make_context(), ref)
    checkpoint = detail.checkpoint
    document = {
        **checkpoint_document(checkpoint),
        **pick(checkpoint, "options", "host"),
        **pick(detail, "tags", "files", "sockets"),
        "move": detail.move and move_document(detail.move),
        "tree": detail.processes,
    }
    emit(document, lambda console: _draw(console, detail), is_answer=True)


def _sections(context: Context, ref: str, wanted: dict[str, bool], pattern: str | None) -> None:
    # Rarely needed and slow to import.
    from crckpt.ops.inspect.sections import sections
    from crckpt.ops.inspect.strings import strings

    found = sections(context, ref, [name for name, is_wanted in wanted.items() if is_wanted])
    matches = None if pattern is None else strings(context, found.checkpoint.id, pattern)
    document = {**checkpoint_document(found.checkpoint), **pick(found, *(name for name in wanted if wanted[name]))}
    if matches is not None:
        document["strings"] = matches
    emit(document, _section_lines(found, matches), is_answer=True)


def _draw(console: Console, detail: CheckpointDetail) -> None:
    checkpoint, numbers = detail.checkpoint, detail.checkpoint.statistics
    move = "" if detail.move is None else describe_move(detail.move)
    if detail.move is not None and detail.move.next_command:
        move += "; see crckpt migrate --list"
    facts = (
        ("id", checkpoint.id),
        ("job", checkpoint.job + "".join(f"  :{tag}" for tag in detail.tags)),
        ("created", creation_time(checkpoint) + ("  (the tree was stopped)" if checkpoint.stopped else "")),
        ("parent", checkpoint.parent or "none"),
        ("note", checkpoint.note or ""),
        ("move", move),
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
    console.print(draw_table(("", ""), ((f"[bold]{name}[/]", escape(value)) for name, value in facts if value)))
    console.print(_tree(detail.processes))
    if detail.files:
        rows = (
            (FoldedPath(file.path), file.state, size(file.bytes) if file.bytes is not None else "", escape(file.use))
            for file in detail.files
        )
        console.print(draw_table(("file", "", "size", "used by"), rows, right=frozenset({"size"})))
    if detail.sockets:
        console.print(draw_table(("socket",), ((FoldedPath(socket),) for socket in detail.sockets)))


def _tree(processes: tuple[ProcessDetail, ...]) -> Tree:
    from rich.tree import Tree  # only where something is drawn

    drawn: dict[int, Tree] = {}
    root = Tree("[bold]processes[/]")
    for process in processes:
        above = drawn.get(process.ppid, root)
        threads = f", {process.threads} threads" if process.threads > 1 else ""
        state = "" if process.state == "alive" else f", {process.state}"
        line = f"{process.pid} [bold]{escape(process.comm)}[/]{threads}{state}, {size(process.memory_bytes)}"
        drawn[process.pid] = above.add(f"{line}  [dim]{escape(process.command_line)}[/]")
    return root


def _section_lines(found: Sections, matches: Iterator[Match] | None) -> Iterator[str]:
    """Write each section under its title; the matches of a search come last."""
    yield f"{title(found.checkpoint)}\n"
    parts = (
        ("processes", None if found.ps is None else _processes(found.ps)),
        ("files", None if found.files is None else _files(found.files)),
        ("sockets", None if found.sockets is None else _sockets(found.sockets)),
        ("maps", None if found.maps is None else _maps(found.maps)),
        ("environment", None if found.env is None else _environment(found.env)),
    )
    for name, text in parts:
        if text is not None:
            yield from ("\n", f"{name}\n")
            yield from _or_none(text)
    if matches is not None:
        yield from ("\n", "strings\n")
        found_strings = (f"{it.pid} {it.comm}  {it.map}  {it.address:x}  {it.text}\n" for it in matches)
        yield from _or_none(found_strings)


def _or_none(found: Iterator[str]) -> Iterator[str]:
    # Only the first: a search of large memory takes long, and each match is shown as it is found.
    first = next(found, None)
    yield "none\n" if first is None else first
    yield from found


def _processes(rows: tuple[ProcessSection, ...]) -> Iterator[str]:
    depth: dict[int, int] = {}
    for row in rows:
        # Parents come before their children. The root's parent is not in the checkpoint.
        depth[row.pid] = depth.get(row.ppid, -1) + 1
        indent = "  " * depth[row.pid]
        user = "" if row.uid is None else f", uid {row.uid}"
        ended = f", wait status {row.exit_code}" if row.state == "zombie" else ""
        ids = f"group {row.pgid}, session {row.sid}"
        call = _call(row.threads[0]) if row.threads else ""
        yield f"{indent}{row.pid} {row.comm}, {row.state}{ended}{call}{user}, {ids}  {row.exe}\n"
        for thread in row.threads[1:]:
            yield f"{indent}  thread {thread.tid} {thread.comm}{_call(thread)}\n"


def _call(thread: ThreadSection) -> str:
    return f", in {thread.system_call}" if thread.system_call else ""


def _files(rows: tuple[FileSection, ...]) -> Iterator[str]:
    titles = ("pid", "fd", "access", "offset", "size", "kind", "path", "")
    cells = (
        (*(getattr(row, name) for name in titles[:-1]), " ".join((*(("deleted",) if row.deleted else ()), *row.flags)))
        for row in rows
    )
    return align(titles, cells, "pid fd offset size")


def _sockets(rows: tuple[SocketSection, ...]) -> Iterator[str]:
    cells = (
        (
            *(row.family, row.type, row.protocol, row.state),
            row.local + (" (deleted)" if row.deleted else ""),
            row.remote,
            ", ".join(f"{holder.pid} fd {holder.fd}" for holder in row.holders) or "no process",
        )
        for row in rows
    )
    return align(("family", "type", "protocol", "state", "local", "remote", "open in"), cells)


def _maps(rows: tuple[MapSection, ...]) -> Iterator[str]:
    cells = (
        (
            *(row.pid, f"{row.start:x}-{row.end:x}", row.permissions, size(row.bytes)),
            "" if row.resident_bytes is None else size(row.resident_bytes),
            size(row.dirty_bytes),
            row.path or f"[{row.kind}]",
        )
        for row in rows
    )
    titles = ("pid", "addresses", "", "size", "resident", "dirty", "map")
    return align(titles, cells, "pid size resident dirty")


def _environment(rows: tuple[Environment, ...]) -> Iterator[str]:
    for row in rows:
        yield f"{row.pid} {row.comm}\n"
        yield from (f"  {variable}\n" for variable in row.variables)
