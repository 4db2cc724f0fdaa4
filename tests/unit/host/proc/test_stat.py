"""Fields of a task's stat, whose name may hold anything."""

from __future__ import annotations

import os

import pytest

from crckpt.host.proc.status import parse_stat, read_stat, start_time


@pytest.mark.parametrize("name", ["python", "a b", ") R 1 (", "((", ""])
def test_comm_with_any_characters_is_parsed(name: str) -> None:
    stat = parse_stat(f"7 ({name}) S 1 2 3 " + " ".join(str(number) for number in range(7, 53)))
    assert (stat.comm, stat.state, stat.ppid, stat.pgid, stat.sid) == (name, "S", 1, 2, 3)
    # Numbers as in proc_pid_stat(5).
    assert (stat.flags, stat.major_faults, stat.cpu_ticks, stat.start, stat.cpu, stat.wait_status) == (
        *(9, 12, 14 + 15, 22, 39, 52),
    )


def test_own_stat_is_read() -> None:
    stat = read_stat(os.getpid())
    assert (stat.ppid, stat.pgid, stat.sid) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert stat.start == start_time(os.getpid())
    assert not stat.is_kernel_thread


def test_missing_process_has_no_start_time() -> None:
    assert start_time(2**22 + 1) is None
