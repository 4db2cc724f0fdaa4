"""The list of all commands, and how each is found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crckpt.cli.app import COMMANDS, run
from crckpt.cli.help import UNLISTED


@pytest.mark.parametrize("command", COMMANDS)
def test_each_listed_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"crckpt {command} " in capsys.readouterr().out


def test_help_lists_every_command_and_loads_none() -> None:
    code = "import sys; from crckpt.cli.app import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f" {command} " in result.stdout for command in set(COMMANDS) - UNLISTED)
    assert not [module for module in result.stderr.split() if module.startswith("crckpt.ops")]


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dunp"]) == 2
    assert "dunp" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_the_option_quiet(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "-q, --quiet" in capsys.readouterr().out
