"""A log is explained, or refused with what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.errors import UsageError
from crckpt.ops.inspect.explain import explain, read_log

LINE = "(00.1) Error (criu/sk-inet.c:137): inet: Unsupported proto 6 for socket 1"


def test_known_line_of_a_log_is_explained(tmp_path: Path) -> None:
    (tmp_path / "dump.log").write_text(f"{LINE}\n")
    found = explain(tmp_path / "dump.log")
    assert found.finding is not None
    assert (found.finding.key, found.lines) == ("protocol", (LINE,))


@pytest.mark.parametrize(
    ("content", "why"), [("", "is empty"), (" \n", "is empty"), ("hello\n", "is not a CRIU log"), (None, "cannot read")]
)
def test_missing_or_other_file_is_refused(tmp_path: Path, content: str | None, why: str) -> None:
    if content is not None:
        (tmp_path / "dump.log").write_text(content)
    with pytest.raises(UsageError, match=why) as caught:
        explain(tmp_path / "dump.log")
    assert caught.value.hint


def test_directory_is_refused_as_a_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        read_log(tmp_path)
