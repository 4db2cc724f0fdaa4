"""The commands in README.md and in the documents print what the pages show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from checkout import PROJECT
from documents.console import needs_systemd, needs_two_hosts, read_steps
from documents.refresh import run_page

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
WITH_COMMANDS = [
    page
    for page in PAGES
    if any(step.output is not None for step in read_steps(page.read_text())) and not needs_two_hosts(page.read_text())
]
CANNOT = 20


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(PROJECT)))
def test_commands_in_the_documentation_print_the_output_that_is_shown_there(page: Path) -> None:
    try:
        differences, _ = run_page(page)
    except subprocess.CalledProcessError as error:
        if needs_systemd(page.read_text()) and error.returncode == CANNOT:
            pytest.skip(error.stderr.strip())
        raise
    assert not differences, "\n".join(differences)
