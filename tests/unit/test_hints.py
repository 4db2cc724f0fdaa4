"""Commands in hints are safe to copy: another user may have chosen a path in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import crckpt
from crckpt.errors import RestoreFailed
from crckpt.host.disk.rewind import restored_on_failure

PACKAGE: Final = Path(crckpt.__file__).parent
COMMAND: Final = re.compile(
    r"(?:^|[ (])(?:rm|cat|ls -ld?|chmod|chmod \S+|chown -R root|lsof|cp -R|crckpt (?:dump|report))( )$"
)
# A number, an id or a name that has been matched as a whole; or a word that was quoted before.
SAFE: Final = re.compile(r"quote|\.pid\b|short_id|job\b|\bpid\b|mode|SHORT|lost|quoted|^int")


def find_unquoted() -> Iterator[str]:
    """Find values in commands that are not quoted: file, line and expression."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for string in ast.walk(ast.parse(path.read_text())):
            before = ""
            for part in string.values if isinstance(string, ast.JoinedStr) else ():
                if isinstance(part, ast.FormattedValue):
                    shown = ast.unparse(part.value)
                    if COMMAND.search(before) and not SAFE.search(shown):
                        yield f"{path.relative_to(PACKAGE)}:{part.lineno}: {shown}"
                    before += "VALUE"
                elif isinstance(part, ast.Constant):
                    before += str(part.value)


def test_all_values_in_suggested_commands_are_quoted() -> None:
    assert list(find_unquoted()) == []


def test_log_name_in_a_hint_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log; reboot"
    log.write_text("short")
    with pytest.raises(RestoreFailed) as caught, restored_on_failure(log, 100, "kept"):
        pass
    assert caught.value.hint == f"check it, then try again: ls -l '{log}'"
