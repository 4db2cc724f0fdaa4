"""Attributes of processes and threads, read from outside."""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest

from crckpt.host.attributes import tasks


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("00400000 default file=/usr/bin/python3.11 mapped=31", (0,)),
        ("7f0000 interleave:0-1,3 anon=1", (3, 0, 1, 3)),
        ("7f0000 bind=static:1 anon=1", (2 | 1 << 15, 1)),
        ("7f0000 prefer (many)=relative|static:2 anon=1", (5 | 1 << 14 | 1 << 15, 2)),
        ("7f0000 weighted interleave:0 anon=1", (6, 0)),
        ("7f0000 local anon=1", (4,)),
        ("7f0000 something new", ()),
        ("", ()),
    ],
)
def test_numa_memory_policies_of_a_task_are_parsed(line: str, value: tuple[int, ...]) -> None:
    assert tasks.parse_memory_policy(line) == value


@pytest.mark.parametrize(("text", "value"), [("/autogroup-7 nice -5\n", (-5,)), ("", ())])
def test_autogroup_nice_values_are_parsed(text: str, value: tuple[int, ...]) -> None:
    assert tasks.parse_autogroup(text) == value


def test_every_process_of_the_host_can_be_read() -> None:
    """Kernel threads and processes from before the first session do not have all attributes of other processes."""
    for number in psutil.pids():
        for reader in (*tasks.OF_PROCESS.values(), *tasks.OF_THREAD.values()):
            with suppress(OSError):
                reader(number)
