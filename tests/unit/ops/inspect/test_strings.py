"""A search in runs of memory finds the same as a search in the whole."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from crckpt.errors import UsageError
from crckpt.ops.context import Context
from crckpt.ops.inspect.strings import matches, strings

BASE = 0x7F0000001000
SIZE = 400_000


def _memory(seed: int) -> bytes:
    """Random bytes that contain words and a long string."""
    chance = random.Random(seed)
    content = bytearray(chance.randbytes(SIZE))
    for _ in range(400):
        at = chance.randrange(SIZE - 50)
        word = b"\0key=%d value-%d\0" % (chance.randrange(100), at)
        content[at : at + len(word)] = word
    content[150_000:210_000] = b"\0" + b"long key=7 " * 5454 + b"\0\0\0\0\0"
    return bytes(content)


def _runs(content: bytes, seed: int) -> list[tuple[int, memoryview]]:
    """The content in runs of 1 to 100,000 bytes that follow each other."""
    chance = random.Random(seed)
    cuts = sorted({0, len(content), *(chance.randrange(len(content)) for _ in range(chance.choice((4, 40, 4000))))})
    return [(BASE + low, memoryview(content)[low:high]) for low, high in pairwise(cuts)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pattern", [rb"key=\d+", rb"^key=\d+ value-\d+$", rb"(?<=key=)\d\b", rb"long.*", rb"x*"])
def test_search_in_runs_equals_search_in_the_whole(pattern: bytes, seed: int) -> None:
    content = _memory(seed)
    lines = re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b"\n", content)
    compiled = re.compile(pattern, re.MULTILINE)
    expected = [(BASE + found.start(), found.group()) for found in compiled.finditer(lines) if found.group()]
    assert len(expected) > 0
    assert list(matches(_runs(content, seed), compiled)) == expected


def test_match_does_not_continue_across_a_gap_in_memory() -> None:
    runs = [(4096, memoryview(b"before-")), (8192, memoryview(b"after"))]
    assert list(matches(runs, re.compile(b"before-after|after"))) == [(8192, b"after")]


def test_invalid_pattern_is_refused_before_reading(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="regular expression"):
        strings(Context(tmp_path), "job", "(")
