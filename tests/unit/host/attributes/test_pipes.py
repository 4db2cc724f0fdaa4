"""Owners of pipes are recorded, and set on pipes alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crckpt.host.attributes.pipes import PipeRecord, read_pipes, restore_owner

USER = (1234, 2345)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give pipes to other users")
def test_only_a_pipe_and_no_other_descriptor_gets_an_owner(tmp_path: Path) -> None:
    """A descriptor may be a file of ours, to which the program writes instead."""
    ends = os.pipe()
    inode = os.fstat(ends[0]).st_ino
    file = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT)
    try:
        os.fchown(ends[0], *USER)
        (found,) = {each for each in read_pipes(os.getpid()) if each.inode == inode}
        assert found == PipeRecord(inode, USER)
        os.fchown(ends[0], 0, 0)
        for number in (ends[1], file):
            restore_owner(number, found)
        assert os.fstat(ends[0])[4:6] == USER
        assert os.fstat(file)[4:6] == (os.geteuid(), os.getegid())
    finally:
        for number in (*ends, file):
            os.close(number)
