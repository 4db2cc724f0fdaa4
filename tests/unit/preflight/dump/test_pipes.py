"""Pipes to processes outside a tree."""

from __future__ import annotations

import os

import pytest
from dump_plans import READS, WRITES, keys, plan, with_files
from msgspec.structs import replace

from crckpt.host.proc import Descriptor


@pytest.mark.parametrize(
    ("end", "key", "message"),
    [(READS, "outside-pipe-read", "then end of file"), (WRITES, "outside-pipe", "the output of crckpt restore")],
)
def test_pipe_to_an_outside_process_is_a_warning_unless_closed(end: Descriptor, key: str, message: str) -> None:
    observation = with_files(end, replace(end, pid=101, fd=9))
    (warning,) = plan(observation).warnings
    assert (warning.key, message in warning.what) == (key, True)
    assert "fd 3 of PID 100" in warning.what
    assert plan(replace(observation, closed_pipes=frozenset({55}))).warnings == ()


def test_more_pipes_than_criu_saves_are_a_blocker() -> None:
    many = tuple(replace(READS, target=f"pipe:[{number}]") for number in range(1024))
    full = with_files(*many, *many, replace(WRITES, target="pipe:[9999]"))
    assert plan(full).blockers == ()
    (found,) = plan(with_files(*many, replace(READS, target="pipe:[9999]", flags=os.O_RDWR))).blockers
    assert (found.key, "1025 pipes" in found.what) == ("pipes-too-many", True)


def test_pipes_within_the_tree_give_no_warning() -> None:
    assert plan(with_files(READS, replace(WRITES, pid=101))).warnings == ()
    assert plan(with_files(replace(READS, flags=os.O_RDWR))).warnings == ()
    assert plan(with_files(READS, replace(READS, flags=os.O_RDWR))).warnings == ()
    two = plan(with_files(READS, replace(WRITES, target="pipe:[56]")))
    assert keys(two.warnings) == ["outside-pipe-read", "outside-pipe"]
