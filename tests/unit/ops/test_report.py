"""A part of a report that cannot be made is named, and the others are made."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from crckpt.errors import Interrupted, UsageError
from crckpt.ops.context import Context
from crckpt.ops.report import ReportRequest, report


def fails(error: BaseException) -> bytes:
    raise error


def test_unexpected_error_is_reported_without_its_text(tmp_path: Path) -> None:
    """The text may quote data that was read."""
    content = "swordfish"
    request = ReportRequest(tmp_path / "it.tar.gz", read_log=lambda: fails(RuntimeError(content)))
    result = report(Context(tmp_path / "store"), request)
    (reason,) = (failed.why for failed in result.failed if failed.part == "log")
    assert "RuntimeError" in reason
    assert "test_report.py" in reason
    assert content not in reason
    with tarfile.open(tmp_path / "it.tar.gz") as archive:
        assert [name.removeprefix("crckpt-report/") for name in archive.getnames()] == [
            member.name for member in result.members
        ]
    assert result.bytes == (tmp_path / "it.tar.gz").stat().st_size


def test_interrupted_report_command_leaves_no_file(tmp_path: Path) -> None:
    request = ReportRequest(tmp_path / "it.tar.gz", read_log=lambda: fails(Interrupted("interrupted by SIGINT")))
    with pytest.raises(Interrupted):
        report(Context(tmp_path / "store"), request)
    assert list(tmp_path.iterdir()) == []


def test_report_does_not_replace_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "it.tar.gz").write_text("something else")
    with pytest.raises(UsageError, match="exists already"):
        report(Context(tmp_path / "store"), ReportRequest(tmp_path / "it.tar.gz"))
    assert (tmp_path / "it.tar.gz").read_text() == "something else"
