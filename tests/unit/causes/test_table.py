"""The tables of causes: what each line of them means, and what is refused."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import crckpt
from crckpt.causes import Cause
from crckpt.causes.catalogue import AREAS, CATALOGUE, SECTIONS, WIDE_AREAS
from crckpt.causes.table import Section, parse

PACKAGE = Path(crckpt.__file__).parent
TABLES = PACKAGE / "causes/messages"


def test_table_of_causes_is_parsed() -> None:
    text = r"""# A comment.
${again}: try
    again
[disks] Disks and tapes
# A source.
full (criu/image.c): most likely: the disk {path|of the tree}
    is full
  remedy: ${again}
  by_criu: df
  # A reason.
  pattern: No space: 'left'|\d
    |ENOSPC$
slow: CRIU before {fixed} is slow
  remedy: use {fixed}
  fixed: 4.1.1 (commit 12ab)
  instead_of: full tape

[tapes] Tapes
tape: the tape is torn
"""
    full = Cause(
        "full",
        "the disk {path|of the tree} is full",
        "try again",
        r"No space: 'left'|\d|ENOSPC$",
        "criu/image.c",
        sure=False,
        by_criu="df",
        section="disks",
    )
    slow = Cause("slow", "CRIU before 4.1.1 is slow", "use 4.1.1", section="disks")
    slow = replace(slow, fixed=(4, 1, 1), instead_of=("full", "tape"))
    assert list(parse(text)) == [
        Section("disks", "Disks and tapes", (full, slow)),
        Section("tapes", "Tapes", (Cause("tape", "the tape is torn", section="tapes"),)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "key: outside of a section\n",
        "[a] A\nkey without a sentence\n",
        "[a] A\nkey: says\n  remedy without a colon\n",
        "[a] A\nkey: says\n  remedy: one\n  remedy: two\n",
        "[a] A\nkey: says\n  remedies: one\n",
        "[a] A\nkey: says\n  sure: no\n",
        "[a] A\nkey: says\n  remedy: ${unknown}\n",
        "[a] A\nkey: says\n  remedy: one\n  fixed: soon\n",
    ],
)
def test_invalid_table_of_causes_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        list(parse(text))


def test_every_section_of_the_tables_is_kept_when_they_are_joined() -> None:
    heads = re.findall(r"^\[", "".join(path.read_text() for path in TABLES.glob("*.txt")), re.MULTILINE)
    assert len(SECTIONS) == len(heads)


def test_every_cause_without_a_pattern_is_used_by_the_code() -> None:
    """Only the code can find such a cause. A key may be made of two parts: `unix-{why}`."""
    texts = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    keys = [entry.key for entry in CATALOGUE if not entry.pattern]
    assert [key for key in keys if key not in texts and not texts.issuperset(split(key))] == []


def split(key: str) -> tuple[str, str]:
    begin, _, end = key.partition("-")
    return f"{begin}-", end


def test_causes_that_another_cause_replaces_exist() -> None:
    keys = {entry.key for entry in CATALOGUE}
    assert [key for entry in CATALOGUE for key in entry.instead_of if key not in keys] == []


@pytest.mark.parametrize("areas", [AREAS, WIDE_AREAS], ids=["areas", "wide areas"])
def test_each_source_file_of_criu_suggests_at_most_one_cause(areas: tuple[tuple[str, Cause], ...]) -> None:
    lines = (PACKAGE.parent / "tests" / "data" / "logs" / "lines.tsv").read_text()
    files = {file.removeprefix("criu/") for file in re.findall(r"[\w./-]+\.[ch](?=:\d)", lines)}
    assert len(files) > 50
    for file in files:
        assert len([entry.key for pattern, entry in areas if re.fullmatch(pattern, file)]) <= 1, file


def test_lines_in_the_tables_of_causes_fit_a_screen() -> None:
    lines = [line for path in TABLES.glob("*.txt") for line in path.read_text().splitlines()]
    assert [line for line in lines if len(line) > 120 or line != line.rstrip()] == []
