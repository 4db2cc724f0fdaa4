"""Fixtures of tests of commands."""

from __future__ import annotations

import pytest
from command_line import CommandLine
from in_memory import tmp_path as tmp_path

from crckpt.store import Repository


@pytest.fixture
def command_line(repository: Repository, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(repository, capsys)
