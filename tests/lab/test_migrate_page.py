"""The commands in docs/howto/migrate.md print what the page shows."""

from __future__ import annotations

import pytest
from hosts import PROJECT, CannotMakeLab
from migrate_page import run_page
from two_hosts import in_namespaces


def test_the_commands_of_the_page() -> None:
    page = (PROJECT / "docs/howto/migrate.md").read_text(encoding="utf-8")
    try:
        with in_namespaces() as lab:
            differences, _ = run_page(lab, page)
    except CannotMakeLab as error:
        pytest.skip(str(error))
    assert not differences, "\n".join(differences)
