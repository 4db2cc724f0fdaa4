"""Search the memory in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from crckpt.errors import UsageError
from crckpt.ops.context import Context

_LONGEST: Final = 1 << 16
"""Bytes that a match may have; what is longer may be found in parts."""

_AS_LINES: Final = bytes(byte if byte == 9 or (byte >= 32 and byte != 127) else 10 for byte in range(256))
"""What is not printable ends a line: so `.*` stays within a string. Bytes from 128 on may be letters in UTF-8."""


class Match(Struct, frozen=True):
    """What was found at an address, and the map (addresses; `end` is not included) that it lies in."""

    pid: int
    comm: str
    start: int
    end: int
    map: str
    address: int
    text: str


def strings(context: Context, ref: str, pattern: str) -> Iterator[Match]:
    """All matches of a regular expression over the printable strings in memory, in the order of the tree.

    Each string is a line to the pattern: `^` is its begin, `$` its end. Letters that are not ASCII are found as UTF-8.
    Raises UsageError if the pattern is none; NoSuchCheckpoint and IntegrityError as they are met.
    """
    try:
        compiled = re.compile(pattern.encode("utf-8", "surrogateescape"), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{pattern!r} is no regular expression: {error}",
            hint="put a \\ before characters that stand for themselves",
        ) from error
    return _search(context, ref, compiled)


def _search(context: Context, ref: str, pattern: re.Pattern[bytes]) -> Iterator[Match]:
    from crckpt.ops.inspect.images import read_image_tree
    from crckpt.ops.inspect.memory import Memory
    from crckpt.store import reader

    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(ref))
        processes = read_image_tree(repository, checkpoint).processes
        with reader(repository, checkpoint) as reading:
            for process in processes:
                memory = Memory(reading, process)
                for region in memory.regions:
                    where = process.pid, process.comm, region.vma.start, region.vma.end, region.label
                    for address, found in matches(memory.runs(region), pattern):
                        yield Match(*where, address, found.decode("utf-8", "backslashreplace"))


def matches(runs: Iterable[tuple[int, memoryview]], pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """(address, bytes) of what the pattern finds in runs of memory, across the seams of those that follow each other.

    Takes memory for one run and twice the longest match.
    """
    window, base, at = b"", 0, 0
    for address, content in runs:
        if address != base + len(window):
            yield from _within(window, base, at, len(window), pattern)
            window, base, at = b"", address, 0
        window += bytes(content).translate(_AS_LINES)
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
    """Matches that begin from `at` to before `end`; empty ones are none."""
    for match in pattern.finditer(window, at):
        if match.start() >= end:
            return
        if match.group():
            yield base + match.start(), match.group()
