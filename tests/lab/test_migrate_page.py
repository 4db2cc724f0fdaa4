"""The commands in the pages on moves print what the pages show."""

from __future__ import annotations

import shutil

import pytest
from hosts import PROJECT, CannotMakeLab
from migrate_page import run_page
from two_hosts import in_namespaces


def check_page(name: str) -> None:
    """Run a page in a lab of its own. Skipped with the lab's own words where it says that this machine cannot."""
    page = (PROJECT / "docs/howto" / name).read_text(encoding="utf-8")
    try:
        with in_namespaces() as lab:
            differences, _ = run_page(lab, page)
    except CannotMakeLab as error:
        pytest.skip(str(error))
    assert not differences, "\n".join(differences)


def test_commands_of_the_page_on_moves_print_what_it_shows() -> None:
    check_page("migrate.md")


def test_commands_of_the_page_on_databases_print_what_it_shows() -> None:
    if not (shutil.which("redis-server") and shutil.which("/usr/lib/postgresql/15/bin/postgres")):
        pytest.skip("redis and PostgreSQL 15 are not installed")
    check_page("migrate-a-database.md")
