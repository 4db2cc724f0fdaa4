"""JSON for programs: indented, and readable whatever a note or a name holds."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crckpt.cli.output import Output, emit

PLAIN = {"a": [], "b": {}, "c": [[], [1, {"d": None}]], "e": 'x": [{,}', "f": "é\x7f\n", "g": 1e22, "h": True}


@pytest.mark.parametrize("note", ["nightly", "é", os.fsdecode(b"caf\xe9"), "\N{GRINNING FACE}"], ids=ascii)
def test_a_document_is_indented_as_json_does_it(note: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit("list", Output({**PLAIN, "note": note}, iter(())), as_json=True)
    document = {"schema": 1, "command": "list", "status": "ok", "result": {**PLAIN, "note": note}}
    assert capsys.readouterr().out == json.dumps(document, indent=2) + "\n"


def test_values_of_ours_become_plain(capsys: pytest.CaptureFixture[str]) -> None:
    values = (Path("/a"), datetime(2026, 1, 2, tzinfo=UTC), Output(1, iter("x")), (part for part in "yz"))
    emit("list", Output(values, iter(())), as_json=True)
    assert json.loads(capsys.readouterr().out)["result"] == [
        "/a",
        "2026-01-02T00:00:00+00:00",
        {"document": 1, "text": ["x"]},
        ["y", "z"],
    ]
