"""Search the memory in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from crckpt.errors import UsageError
from crckpt.ops.context import Context
from crckpt.ops.inspect.images import opened_checkpoint
from crckpt.ops.inspect.memory import Memory
from crckpt.store import open_reader

# The most bytes of one match; longer ones may be found in parts.
_LONGEST: Final = 1 << 16

# Make bytes that are not printable end a line, so that `.*` stays in a string. Bytes from 128 on may be UTF-8.
_AS_LINES: Final = bytes(byte if byte == 9 or (byte >= 32 and byte != 127) else 10 for byte in range(256))


class Match(Struct, frozen=True):
    """A match at an address, and the map that it is in (`end` is not included)."""

    pid: int
    comm: str
    start: int
    end: int
    map: str
    address: int
    text: str


def strings(context: Context, ref: str, pattern: str) -> Iterator[Match]:
    """Search the printable strings in memory for a regular expression; the matches come in the order of the tree.

    For the pattern each string is a line: `^` is its start, `$` its end. Letters that are not ASCII are found as UTF-8.
    Raises UsageError if the pattern is invalid, and NoSuchCheckpoint and IntegrityError during the search.
    """
    try:
        compiled = re.compile(pattern.encode("utf-8", "surrogateescape"), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{pattern!r} is not a regular expression: {error}",
            hint="to search for a special character itself, put a \\ before it",
        ) from error
    # A function of its own, so that the pattern is refused before the first match is asked for.
    return _search(context, ref, compiled)


def _search(context: Context, ref: str, pattern: re.Pattern[bytes]) -> Iterator[Match]:
    with (
        opened_checkpoint(context, ref) as (repository, checkpoint, tree),
        open_reader(repository, checkpoint) as reading,
    ):
        for process in tree.processes:
            memory = Memory(reading, process)
            for region in memory.regions:
                where = process.pid, process.comm, region.vma.start, region.vma.end, region.label
                for address, found in matches(memory.runs(region), pattern):
                    yield Match(*where, address, found.decode("utf-8", "backslashreplace"))


def matches(runs: Iterable[tuple[int, memoryview]], pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (address, bytes) of each match in runs of memory. A match may cross from a run into the next address.

    Takes memory for one run and twice the longest match.
    """
    window, base, at = b"", 0, 0
    for address, content in runs:
        # There is a gap: a match cannot cross it.
        if address != base + len(window):
            yield from _within(window, base, at, len(window), pattern)
            window, base, at = b"", address, 0
        window += bytes(content).translate(_AS_LINES)
        # A match that begins after this may continue in the next run.
        settled = len(window) - _LONGEST
        if settled > at:
            for start, found in _within(window, base, at, settled, pattern):
                yield start, found
                at = start - base + len(found)
            at = max(at, settled)
            # The pattern may look at what is before a match.
            cut = max(0, at - _LONGEST)
            window, base, at = window[cut:], base + cut, at - cut
    yield from _within(window, base, at, len(window), pattern)


def _within(window: bytes, base: int, at: int, end: int, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the matches that begin from `at` to before `end`, without empty ones."""
    for match in pattern.finditer(window, at):
        if match.start() >= end:
            return
        if match.group():
            yield base + match.start(), match.group()
