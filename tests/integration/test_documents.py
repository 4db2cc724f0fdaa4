"""The commands in README.md and in the documents print what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents.console import Shell, difference, read_steps
from places import PROJECT

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if any(step.output is not None for step in read_steps(page.read_text()))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(PROJECT)))
def test_the_commands_of_a_page(page: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        for step in read_steps(page.read_text()):
            assert not difference(shell.run(step))
    finally:
        shell.close()
