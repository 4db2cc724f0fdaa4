"""Reads from /proc are bounded, whatever a program has done."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from crckpt.host.proc import procfs


def test_endless_line_of_a_file_in_proc_is_not_read(tmp_path: Path) -> None:
    """The path of a mapped file may be of any length."""
    file = tmp_path / "maps"
    file.write_bytes(b"a line\n" + b"x" * 100_000 + b"\nand another")
    assert procfs.text(str(file)) == file.read_text()
    with file.open("ab") as longer:
        longer.truncate(1 << 40)
    with pytest.raises(OSError, match="File too large") as raised:
        procfs.text(str(file))
    assert raised.value.errno == errno.EFBIG
