"""README is short, its links lead somewhere, and its picture shows its tour."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from checkout import PROJECT
from documents.console import read_steps

PAGES = (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", PROJECT / "SECURITY.md", PROJECT / "CHANGELOG.md")
LONGEST = 155


def test_readme_has_at_most_155_lines() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_pages_lead_to_existing_files(page: Path) -> None:
    """The site checks the links of all other pages."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (PROJECT / link).exists()] == []


def test_picture_in_the_readme_shows_the_commands_of_the_tour() -> None:
    page = PAGES[0].read_text()
    shown = page.partition("<!-- picture: begin -->")[2].partition("<!-- picture: end -->")[0]
    picture = html.unescape((PROJECT / "docs/static/tour.svg").read_text()).replace("\N{NO-BREAK SPACE}", " ")
    commands = [step.command for step in read_steps(shown) if step.output is not None]
    assert commands
    assert [command for command in commands if command not in picture] == []
