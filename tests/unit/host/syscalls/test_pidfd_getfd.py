"""Descriptors of a live process are borrowed: ours is the same open file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from own_process import descriptors
from small_programs import WAIT_STATEMENTS, free_pid, program

from crckpt.host.process.pidfd import borrow, borrow_each


def test_borrowed_descriptor_shares_its_offset(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    code = f"file = os.open({str(tmp_path / 'file')!r}, os.O_RDONLY)\nos.lseek(file, 3, 0)\nprint(file, flush=True)\n"
    with program(code + WAIT_STATEMENTS) as process:
        (number,) = (
            int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir() if path.readlink().name == "file"
        )
        borrowed = borrow(process.pid, number)
        assert os.lseek(borrowed, 0, os.SEEK_CUR) == 3
        os.lseek(borrowed, 5, os.SEEK_SET)
        assert "pos:\t5\n" in Path(f"/proc/{process.pid}/fdinfo/{number}").read_text()
        assert not os.get_inheritable(borrowed)
        os.close(borrowed)


def test_missing_descriptors_are_skipped_and_copies_closed() -> None:
    before = descriptors()
    with program(WAIT_STATEMENTS) as process:
        taken = list(borrow_each(process.pid, [0, 1000, 1]))
        assert [number for number, _ in taken] == [0, 1]
        for _, ours in taken:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(ours)
    assert descriptors() == before


def test_ended_process_has_no_descriptors() -> None:
    assert list(borrow_each(free_pid(), [0])) == []
    with pytest.raises(ProcessLookupError):
        borrow(free_pid(), 0)
