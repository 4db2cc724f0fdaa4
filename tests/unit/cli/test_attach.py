"""`crckpt attach`: what it needs, and its key."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from crckpt.cli import attach as command
from crckpt.cli.app import run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

USAGE = 2


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_attach_without_a_terminal_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(["attach", "trainer"]) == USAGE
    assert "crckpt attach needs a terminal" in capsys.readouterr().err


def test_attach_with_json_and_without_list_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attach", "trainer", "--json"]) == USAGE
    assert "--list" in json.loads(capsys.readouterr().out)["error"]["hint"]


@pytest.mark.parametrize(("text", "key"), [("^]", 29), ("^P", 16), ("^p", 16), ("^\\", 28), ("none", None)])
def test_detach_key_given_as_text_becomes_one_byte(text: str, key: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(command, "perform", lambda _name, _ours, key, _announce: asked.append(key))
    run(["attach", "trainer", "--detach-key", text])
    assert asked == [key]


@pytest.mark.parametrize("text", ["q", "^1", "^", "", "^PQ"])
def test_invalid_detach_key_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert run(["attach", "trainer", "--detach-key", text]) == USAGE
    assert "--detach-key ^P" in capsys.readouterr().err
