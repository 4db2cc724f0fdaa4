"""The generated reference is complete, and its examples are valid."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import PROJECT
from documents.__main__ import main
from documents.causes import causes
from documents.commands import command_groups, command_page
from documents.json_documents import DOCUMENTS, check, schema
from documents.store_format import store_format
from msgspec import ValidationError
from msgspec.structs import fields

import crckpt
from crckpt.causes.catalogue import CATALOGUE
from crckpt.cli.app import COMMANDS
from crckpt.cli.command_reference import VARIABLES, exit_codes, read_commands
from crckpt.cli.help import UNLISTED
from crckpt.cli.man_pages import write_man_pages
from crckpt.config import Config, parse

EXAMPLE = PROJECT / "docs/reference/crckpt.yaml"
# Described with NO_COLOR; of tests (`crckpt.host.steps`).
OTHER_VARIABLES = {"TERM", "CRCKPT_STEPS_FILE"}


def test_every_command_and_option_has_page_and_man_page(tmp_path: Path) -> None:
    commands = read_commands()
    overview = command_groups(commands)
    assert {file.name for file in write_man_pages(tmp_path)} == {"crckpt.1", *(f"crckpt-{name}.1" for name in COMMANDS)}
    for command in commands:
        manual = (tmp_path / f"crckpt-{command.name}.1").read_text().replace("\\-", "-")
        page = command_page(command)
        assert command.paragraphs, command.name
        assert f"[{command.name}](commands/{command.name}.md)" in overview
        assert f"crckpt-{command.name}" in (tmp_path / "crckpt.1").read_text().replace("\\-", "-")
        for parameter in (*command.arguments, *command.options):
            assert parameter.help, parameter
            assert f"`{parameter.title}`" in page
            assert f"\\fB{parameter.title}\\fR" in manual


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_formats_every_page_without_a_warning(tmp_path: Path) -> None:
    for page in write_man_pages(tmp_path):
        result = subprocess.run(["man", "--warnings", "--local-file", page], capture_output=True, text=True, check=True)
        assert result.stderr == ""
        assert "crckpt" in result.stdout


def test_example_configuration_has_every_key() -> None:
    configuration = parse(EXAMPLE.read_text(), str(EXAMPLE))
    assert None not in [getattr(configuration, field.name) for field in fields(Config)]


def test_every_environment_variable_is_described() -> None:
    described = {name for name, _ in VARIABLES}
    options = {option.variable for command in read_commands() for option in command.options} - {""}
    assert options <= described
    assert _variables_read() - OTHER_VARIABLES <= described


def _variables_read() -> set[str]:
    """Names of variables that the code looks up, and those of XDG, whose directories it asks for by name."""
    names: set[object] = set()
    for path in Path(crckpt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get":
                names |= {word.value for word in node.args[:1] if isinstance(word, ast.Constant)}
            elif isinstance(node, ast.Compare) and "os.environ" in map(ast.unparse, node.comparators):
                names |= {node.left.value} if isinstance(node.left, ast.Constant) else set()
            elif isinstance(node, ast.Constant) and str(node.value).startswith("XDG_"):
                names.add(node.value)
    return {str(name) for name in names}


def test_reference_describes_each_exit_code() -> None:
    assert all(meaning for _, meaning in exit_codes())
    assert {0, 1, 2, 10, 24, 130} <= dict(exit_codes()).keys()


def test_every_cause_has_one_anchor() -> None:
    anchors = re.findall(r"^### (.*)$", causes(), re.MULTILINE)
    assert sorted(anchors) == sorted(cause.key for cause in CATALOGUE)


def test_causes_page_has_no_unfilled_template_fields() -> None:
    assert not re.findall(r"[{}]\w*[|}]", causes().replace("{}", ""))


def test_every_command_has_a_schema() -> None:
    # `receive` speaks to another crckpt, not to a script.
    assert list(DOCUMENTS) == [command for command in COMMANDS if command not in UNLISTED]
    assert all(schema(document)["$defs"] for documents in DOCUMENTS.values() for document in documents)


def test_invalid_documents_do_not_match_the_schema() -> None:
    tag = '{"schema": 1, "command": "tag", "status": "ok", "result": {"job": "a", "tag": "b", "id": "%s"}}'
    check(tag % ("0" * 64))
    with pytest.raises(ValidationError):
        check(tag % "0")
    with pytest.raises(ValidationError):
        check(tag.replace('"tag": "b", ', "") % ("0" * 64))


def test_store_format_page_has_its_headings() -> None:
    assert {"## Page", "## Pack", "## Manifest"} <= set(store_format().splitlines())


def test_outdated_reference_pages_are_reported_and_can_be_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(PROJECT / "docs/reference", tmp_path / "reference")
    main(tmp_path, write=True)
    assert main(tmp_path, write=False) == 0
    page, surplus = tmp_path / "reference/exit-codes.md", tmp_path / "reference/commands/bury.md"
    before = page.read_text()
    page.write_text(before.replace("The command succeeded", "Good"))
    surplus.write_text("")
    assert main(tmp_path, write=False) == 1
    assert capsys.readouterr().err == (
        f"not as the code generates it: {surplus}, {page}: type scripts/docs --write, and commit the result\n"
    )
    main(tmp_path, write=True)
    assert page.read_text() == before
    assert not surplus.exists()
