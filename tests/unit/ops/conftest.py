"""Fixtures of tests of operations."""

from __future__ import annotations

import pytest
from in_memory import tmp_path as tmp_path

from crckpt.ops.context import Context
from crckpt.store import Repository


@pytest.fixture
def context(repository: Repository) -> Context:
    return Context(repository.root)
