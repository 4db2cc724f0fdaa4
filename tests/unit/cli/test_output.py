"""Output: JSON for programs, readable whatever a name holds; and failures as people read them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crckpt.cli.output import Output, emit, error_text
from crckpt.errors import CrckptError, PreflightRefused

PLAIN = {"a": [], "b": {}, "c": [[], [1, {"d": None}]], "e": 'x": [{,}', "f": "é\x7f\n", "g": 1e22, "h": True}


@pytest.mark.parametrize("note", ["nightly", "é", os.fsdecode(b"caf\xe9"), "\N{GRINNING FACE}"], ids=ascii)
def test_a_document_is_indented_like_json_dumps(note: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit("list", Output({**PLAIN, "note": note}, iter(())), as_json=True)
    document = {"schema": 1, "command": "list", "status": "ok", "result": {**PLAIN, "note": note}}
    assert capsys.readouterr().out == json.dumps(document, indent=2) + "\n"


def test_structs_paths_times_and_iterators_become_json(capsys: pytest.CaptureFixture[str]) -> None:
    values = (Path("/a"), datetime(2026, 1, 2, tzinfo=UTC), Output(1, iter("x")), (part for part in "yz"))
    emit("list", Output(values, iter(())), as_json=True)
    assert json.loads(capsys.readouterr().out)["result"] == [
        "/a",
        "2026-01-02T00:00:00+00:00",
        {"document": 1, "text": ["x"]},
        ["y", "z"],
    ]


def test_names_of_others_cannot_control_the_terminal() -> None:
    """Any program can choose the name of a socket that a tree is connected to."""
    named = "a socket to @\x1b[31m\nX\udcff"
    said = error_text(CrckptError(named, hint=named, causes=(named, named)))
    assert said.replace("\n", "").isprintable()
    assert len(said.splitlines()) == 4
    said.encode()


def test_several_reasons_are_listed_once_each() -> None:
    """The first reason is not the headline, and its remedy is not the remedy of all."""
    refusal = PreflightRefused(
        "PID 7 is taken", hint="end it", causes=("PID 7 is taken: end it", "x is gone: put it back")
    )
    assert error_text(refusal).splitlines() == [
        "crckpt: refused for 2 reasons:",
        "  - PID 7 is taken: end it",
        "  - x is gone: put it back",
    ]
