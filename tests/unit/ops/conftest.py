"""What tests of operations share."""

from __future__ import annotations

import pytest

from crckpt.ops.context import Context
from crckpt.store import Repository


@pytest.fixture
def context(repository: Repository) -> Context:
    return Context(repository.root)
