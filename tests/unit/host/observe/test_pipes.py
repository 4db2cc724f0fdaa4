"""Ends of pipes: grouped by pipe, refilled, and those without another end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from own_process import descriptors as own_descriptors
from small_programs import WAIT_STATEMENTS, program

from crckpt.host import proc
from crckpt.host.observe.descriptors import (
    find_closed_pipes,
    group_by_pipe,
    is_read_end,
    is_write_end,
    make_filled_pipe,
)


def test_both_ends_of_a_pipe_form_one_group() -> None:
    reading, writing = os.pipe()
    try:
        ends = group_by_pipe(proc.descriptors(os.getpid()))[os.fstat(reading).st_ino]
        assert [end.fd for end in ends] == [reading, writing]
        assert [(is_read_end(end), is_write_end(end)) for end in ends] == [(True, False), (False, True)]
    finally:
        os.close(reading)
        os.close(writing)


def test_named_pipe_is_not_taken_for_an_unnamed_one(tmp_path: Path) -> None:
    name = tmp_path / "pipe:[7]"
    os.mkfifo(name)
    both = os.open(name, os.O_RDWR)
    (found,) = (found for found in proc.descriptors(os.getpid()) if found.fd == both)
    assert group_by_pipe([found]) == {}
    assert (is_read_end(found), is_write_end(found)) == (True, True)
    os.close(both)


@pytest.mark.parametrize("closed", ["reader", "writer"])
def test_pipe_whose_other_end_nobody_has_is_found(closed: str) -> None:
    ends = dict(zip(("reader", "writer"), os.pipe(), strict=True))
    inode = os.fstat(ends["reader"]).st_ino
    kept = ends["writer" if closed == "reader" else "reader"]
    with program(WAIT_STATEMENTS, kept) as process:
        assert inode not in find_closed_pipes(proc.descriptors(process.pid)), "we have it"
        os.close(ends.pop(closed))
        assert inode in find_closed_pipes(proc.descriptors(process.pid))
    os.close(kept)


def test_pipe_is_recreated_with_its_size_and_content() -> None:
    before = own_descriptors()
    reading, writing = make_filled_pipe(1 << 18, b"x" * 70_000)
    assert os.read(reading, 1 << 18) == b"x" * 70_000
    assert os.write(writing, bytes(1 << 19)) == 1 << 18
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="holds less than it did") as caught:
        make_filled_pipe(4096, b"x" * 70_000)
    assert caught.value.errno == errno.ENOSPC
    assert own_descriptors() == before
