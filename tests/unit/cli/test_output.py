"""Output: JSON for programs, readable whatever a name holds; and failures as people read them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crckpt.causes import cause, preflight_refusal
from crckpt.cli.output import emit, error_text, form, print_progress
from crckpt.errors import CrckptError, PreflightRefused
from crckpt.ops.doctor import Fix

PLAIN = {"a": [], "b": {}, "c": [[], [1, {"d": None}]], "e": 'x": [{,}', "f": "é\x7f\n", "g": 1e22, "h": True}


@pytest.fixture(autouse=True)
def plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines of other tests have set the form of theirs."""
    for name, value in (("command", "list"), ("as_json", False), ("is_quiet", False)):
        monkeypatch.setattr(form, name, value)


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch, plain_form: None) -> None:
    monkeypatch.setattr(form, "as_json", True)


@pytest.mark.parametrize("note", ["nightly", "é", os.fsdecode(b"caf\xe9"), "\N{GRINNING FACE}"], ids=ascii)
@pytest.mark.usefixtures("as_json")
def test_json_is_indented_like_json_dumps(note: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit({**PLAIN, "note": note}, iter(()))
    document = {"schema": 1, "command": "list", "status": "ok", "result": {**PLAIN, "note": note}}
    assert capsys.readouterr().out == json.dumps(document, indent=2) + "\n"


@pytest.mark.usefixtures("as_json")
def test_structs_paths_times_and_iterators_become_json(capsys: pytest.CaptureFixture[str]) -> None:
    values = (Path("/a"), datetime(2026, 1, 2, tzinfo=UTC), Fix("criu", "true", said="é"), (part for part in "yz"))
    emit(values, iter(()))
    assert json.loads(capsys.readouterr().out)["result"] == [
        "/a",
        "2026-01-02T00:00:00+00:00",
        {"key": "criu", "command": "true", "done": False, "said": "é"},
        ["y", "z"],
    ]


def test_foreign_names_cannot_control_the_terminal() -> None:
    """Any program can choose the name of a socket that a tree is connected to."""
    named = "a socket to @\x1b[31m\nX\udcff"
    output = error_text(CrckptError(named, hint=named, causes=(f"1 {named}", f"2 {named}")))
    assert output.replace("\n", "").isprintable()
    assert len(output.splitlines()) == 4
    output.encode()


def test_error_lists_each_of_several_reasons_once() -> None:
    """The first reason is not the headline, and each reason has its own remedy."""
    refusal = PreflightRefused(
        "PID 7 is taken", hint="end it", causes=("PID 7 is taken: end it", "x is gone: put it back")
    )
    assert error_text(refusal).splitlines() == [
        "crckpt: refused for 2 reasons:",
        "  - PID 7 is taken: end it",
        "  - x is gone: put it back",
    ]


def test_error_prints_a_remedy_of_many_reasons_once_below_them() -> None:
    found = [cause("device-unlinked").finding(device=f"eth{number}") for number in range(10)]
    lines = error_text(preflight_refusal((cause("file-missing").finding(path="/x", use="fd 3"), *found))).splitlines()
    missing = "  - /x is missing (fd 3): put it back; or restore an older checkpoint: crckpt restore REF --or-older"
    assert lines[:3] == ["crckpt: refused for 11 reasons:", missing, "  - eth0 has no link"]
    assert lines[-3:] == ["  - eth7 has no link", "  - 2 more like these", "    hint: connect its cable"]


def test_lines_of_the_criu_log_are_shown_only_if_the_message_does_not_contain_them() -> None:
    log = ("Error: no file", "Error: it failed")
    explained = CrckptError("a file is missing", hint="find it", causes=log, causes_said=2)
    assert error_text(explained).splitlines() == ["crckpt: a file is missing", "  hint: find it"]
    unknown = CrckptError("the dump failed: Error: no file", hint="find it", causes=log, causes_said=1)
    assert error_text(unknown).splitlines() == [
        "crckpt: the dump failed: Error: no file",
        "  - Error: it failed",
        "  hint: find it",
    ]


def test_error_shows_the_only_line_of_the_criu_log() -> None:
    needed = CrckptError("the dump failed: a file is missing", hint="find it", causes=("Error: no /srv/x",))
    assert error_text(needed).splitlines()[1:] == ["  - Error: no /srv/x", "  hint: find it"]


def test_reworded_error_keeps_its_other_fields() -> None:
    found = cause("ip-missing").finding()
    refusal = preflight_refusal((found,), is_in_use=True)
    other = refusal.reword("f", hint="g")
    assert (str(other), other.message, other.hint) == ("f", "f", "g")
    assert (other.causes, other.is_in_use, other.findings) == ((str(found),), True, (found,))
    assert (str(refusal), refusal.hint) == (found.what, found.remedy)


def test_with_quiet_only_answers_and_json_documents_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(form, "is_quiet", True)
    emit({}, iter(["a message\n"]))
    emit({}, iter(["a message\n"]), to_stderr=True)
    emit({}, lambda console: console.print("a message"))
    print_progress("a message")
    assert capsys.readouterr() == ("", "")
    emit({}, iter(["an answer\n"]), is_answer=True)
    assert capsys.readouterr() == ("an answer\n", "")
    monkeypatch.setattr(form, "as_json", True)
    emit({"a": 1}, iter(()))
    assert json.loads(capsys.readouterr().out)["result"] == {"a": 1}


def test_progress_from_another_host_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_progress("node2: \x1b]0;title\x07\x1b[2J\rround 1\n\u202e")
    mark = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().err == f"node2: {mark}]0;title{mark}[2J{mark}round 1{mark}\\u202e\n"


def test_messages_and_progress_are_printed_without_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert not form.is_quiet
    emit({}, iter(["a message\n"]))
    print_progress("progress")
    assert capsys.readouterr() == ("a message\n", "progress\n")
