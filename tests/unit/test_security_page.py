"""SECURITY.md: every test that it names exists, and it repeats nothing."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from checkout import PROJECT

ROOT = PROJECT
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:tests|crckpt)/[\w./-]+)", PAGE)))
FUNCTIONS = sorted(set(re.findall(r"`(?:(tests/[\w./-]+)::)?(test_\w+)`", PAGE)))
COLUMNS = 3


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of all functions in a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def rows() -> list[list[str]]:
    """Return the cells of every row of the tables with tests, without the headings."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if set(row[0]) != {"-"} and row[0] not in {"Who", "What comes from outside"}]


@pytest.mark.parametrize("path", PATHS)
def test_each_path_on_the_security_page_exists(path: str) -> None:
    """The page names paths of tests and of sources."""
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("path", "name"), FUNCTIONS)
def test_each_test_function_on_the_security_page_exists(path: str, name: str) -> None:
    """The function is in the named file, or in any file if none is named."""
    files = [ROOT / path] if path else (ROOT / "tests").rglob("*.py")
    assert any(name in functions(file) for file in files)


def test_each_row_of_the_security_page_names_its_test() -> None:
    """Only the table of promises has two columns and no tests."""
    assert not [row for row in rows() if len(row) == COLUMNS and not re.search(r"`(?:tests/|test_)", row[2])]
    assert {len(row) for row in rows()} == {COLUMNS - 1, COLUMNS}


def test_no_row_or_section_of_the_security_page_occurs_twice() -> None:
    """No row or section occurs twice."""
    headings = re.findall(r"^#+ .*", PAGE, re.MULTILINE)
    counts = Counter([*headings, *(row[0] for row in rows())])
    assert not [text for text, count in counts.items() if count > 1]
