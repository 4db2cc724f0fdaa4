"""Help fits a terminal of 80 columns and is complete."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.core import TyperOption
from typer.main import get_command

from crckpt.cli.app import COMMANDS, Commands, make_app, run
from crckpt.cli.help import PANELS, UNLISTED

COLUMNS = 80
LABELS = 24


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words, "--help"]) == 0
    return capsys.readouterr().out


def options_of(command: str) -> list[TyperOption]:
    group = get_command(make_app(command))
    parsed = getattr(group, "commands")[command]  # noqa: B009 mypy knows no group
    return [each for each in parsed.params if isinstance(each, TyperOption) and not each.hidden]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_the_terminal_width(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, *([command] if command else []))
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert not set("…`<\033") & set(text)
    assert "**" not in text


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_narrow_terminal_shows_the_whole_default(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = " ".join(help_of(capsys, "list").split())
    assert "[default: /var/lib/crckpt; unless you are root, ~/.local/share/crckpt] [env: CRCKPT_STORE]" in words


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_in_a_panel_with_a_narrow_column(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, command)
    titles = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    panels = [title for title in titles if title in PANELS]
    assert panels == sorted(panels, key=PANELS.index)
    assert set(titles) <= {"Arguments", "For example", *PANELS}
    for option in options_of(command):
        assert option.rich_help_panel in (None, *PANELS), option.opts
        assert option.is_flag or option.metavar, f"{option.opts} needs a metavar"
        assert all(f" {name}" in text.replace("[no-]", "") for name in option.opts)
    begin = text.index(f"{panels[0]}:")
    texts = {len(line) - len(line.lstrip()) for line in text[begin:].splitlines()} - {0, 2}
    assert len(texts) <= 1
    assert max(texts, default=0) <= LABELS


def test_each_command_is_in_one_group() -> None:
    assert sorted(name for names in Commands.groups.values() for name in names) == sorted(set(COMMANDS) - UNLISTED)


def test_job_argument_has_the_same_name_in_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("dump", "pre-dump", "list"):
        assert "[JOB]" in help_of(capsys, command).splitlines()[0]
    assert help_of(capsys, "import").splitlines()[0] == "Usage: crckpt import [OPTIONS] DIR JOB"


def test_help_of_dump_fits_two_screens(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(help_of(capsys, "dump").splitlines()) <= 75


def test_help_of_migrate_has_at_most_95_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(help_of(capsys, "migrate").splitlines()) <= 95


def test_command_help_prints_the_same_as_the_option_help(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = help_of(capsys, "restore")
    assert run(["help", "restore"]) == 0
    assert capsys.readouterr().out == wanted
    wanted = help_of(capsys)
    for words in (["help"], ["help", "help"], ["help", "--help"]):
        assert run(words) == 0
        assert capsys.readouterr().out == wanted
    assert run(["help", "dunp"]) == 2
    assert "there is no command dunp" in capsys.readouterr().err


def test_no_arguments_show_the_help_and_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    output = capsys.readouterr()
    assert output.out.startswith("Usage: crckpt COMMAND")
    assert output.err == ""


def test_help_does_not_load_rich() -> None:
    code = "import sys; from crckpt.cli.app import run; run(['dump', '--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "markdown_it"} & set(result.stderr.split())
