"""Errors of the parser are printed like all other errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from crckpt.cli.app import SYNONYMS, invalid_command_line, run


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("dunp 5", "there is no command dunp", "did you mean crckpt dump? all commands: crckpt help"),
        ("repair x", "there is no command repair", "did you mean crckpt verify --repair? all commands: crckpt help"),
        ("xyzzy", "there is no command xyzzy", "all commands: crckpt help"),
        (
            "dump --stopp 5",
            "there is no option --stopp",
            "did you mean --stop? all options: crckpt help dump",
        ),
        ("list -z", "there is no option -z", "all options: crckpt help list"),
        (
            "--wrong",
            "there is no option --wrong",
            "did you mean --version? options of a command come after it: crckpt help",
        ),
        ("dump", "TARGET is missing", "crckpt help dump"),
        ("diff a", "B is missing", "crckpt help diff"),
        (
            "dump 5 job more words",
            "there are too many arguments: more words",
            "name one process; its descendants are included: crckpt help dump",
        ),
        ("trackers --end all", "there is no command trackers", "did you mean crckpt ps?"),
        ("dump 5 --tag", "--tag needs a value", "crckpt help dump"),
        ("--version=3", "--version takes no value", "crckpt help"),
        ("dump 5 --stop=3", "--stop takes no value", "crckpt help dump"),
        ("dump 5 --max-rounds 0", "--max-rounds: 0 is not a whole number of at least 1", "crckpt help dump"),
        ("dump 5 --max-rounds x", "--max-rounds: x is not a whole number of at least 1", "crckpt help dump"),
        ("dump 5 --compress 99", "--compress: 99 is not a whole number between -7 and 19", "crckpt help dump"),
        ("dump 5 --tcp so", "--tcp: 'so' is not one of 'keep', 'close'", "crckpt help dump"),
        ("core a b", "PID: b is not a whole number", "crckpt help core"),
        ("rehearse a --seconds x", "--seconds: x is not a number", "crckpt help rehearse"),
    ],
)
def test_each_error_of_the_command_line_parser_is_reworded(
    line: str, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    output, advised = capsys.readouterr().err.splitlines()
    assert output == f"crckpt: {message}"
    assert advised.startswith(f"  hint: {hint}")


@pytest.mark.parametrize("suggested", sorted(set(SYNONYMS.values())))
def test_suggested_commands_and_options_exist(suggested: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, _, option = suggested.partition(" ")
    assert run(["--help"] if command.startswith("--") else [command, "--help"]) == 0
    assert f" {option or command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("near", "hint"),
    [
        (None, "all options: crckpt help dump"),
        (["--o", "--p"], "did you mean --o or --p? all options: crckpt help dump"),
    ],
)
def test_error_for_an_unknown_option_suggests_similar_options(near: list[str] | None, hint: str) -> None:
    error = invalid_command_line(SimpleNamespace(option_name="--x", possibilities=near), "dump")
    assert (error.message, error.hint) == ("there is no option --x", hint)


def test_parser_error_of_an_unknown_class_keeps_its_words() -> None:
    error = invalid_command_line(SimpleNamespace(format_message=lambda: "something new"), "dump")
    assert (error.message, error.hint) == ("something new", "crckpt help dump")
