"""Write the sections of `crckpt show` as lines."""

from __future__ import annotations

from collections.abc import Iterator

from crckpt.cli.format import align, size, title
from crckpt.ops.inspect.descriptors import FileSection, SocketSection
from crckpt.ops.inspect.sections import Environment, MapSection, ProcessSection, Sections, ThreadSection
from crckpt.ops.inspect.strings import Match


def lines(found: Sections, matches: Iterator[Match] | None) -> Iterator[str]:
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
