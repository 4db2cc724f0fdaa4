"""Signs of progress of CRIU and of the processes that it restores."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from small_programs import WAIT_STATEMENTS, free_pid, program, read_line
from target_processes import wait_for

from crckpt.host.proc.status import read_stat
from crckpt.host.process.criu_progress import (
    QUIET_S,
    Progress,
    dump_signs,
    waits_for_a_disk,
    waits_for_a_program,
    work_done,
)


def test_restore_that_is_idle_for_too_long_is_reported_as_stuck(
    waiting_program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    progress = Progress(tmp_path / "log")
    looks = [progress.is_stuck() for _ in range(QUIET_S + 2)]
    assert looks == [False] * (QUIET_S + 1) + [True]


def test_growing_log_counts_as_progress_of_criu(waiting_program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    progress = Progress(tmp_path / "log")
    with (tmp_path / "log").open("w") as log:
        for number in range(2 * QUIET_S):
            print(number, file=log, flush=True)
            assert not progress.is_stuck()
    assert [progress.is_stuck() for _ in range(QUIET_S + 1)][-1]


def test_new_process_counts_as_progress_of_criu(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "log")
    for _ in range(QUIET_S):
        progress.is_stuck()
    with program(WAIT_STATEMENTS):
        assert not any(progress.is_stuck() for _ in range(QUIET_S))


def test_cpu_time_and_log_are_signs_of_progress(tmp_path: Path) -> None:
    log = tmp_path / "log"
    echo = "while True:\n    print(sys.stdin.readline(), flush=True)\n"
    with program(f"print('ready', flush=True)\n{echo}") as process:
        pids = (process.pid,)

        def wait_until_it_reads() -> None:
            """Wait until the program reads: it may still work, on a busy machine also after its answer."""
            wait_for(lambda: read_stat(process.pid).state == "S", "the process to read")

        wait_until_it_reads()
        before = dump_signs(pids, (), log)
        assert before is not None
        assert dump_signs(pids, (), log) == before
        assert process.stdin is not None
        process.stdin.write(b"x" * 5000 + b"\n")
        process.stdin.flush()
        read_line(process)
        wait_until_it_reads()
        after = dump_signs(pids, (), log)
        assert after is not None
        assert (after[0], after[1] >= before[1] + 10_000) == (before[0], True)
        log.write_text("more")
        assert dump_signs(pids, (), log) == (*after[:2], 4)
        # It does not count as work of the dump while it is not held.
        assert dump_signs((), pids, log) == ((), 0, 4)
        seize = f"import ctypes; assert ctypes.CDLL(None).ptrace(0x4206, {process.pid}, None, None) == 0"
        with program(f"{seize}\nprint('held', flush=True)\nsys.stdin.read()") as criu:
            wait_for(lambda: read_stat(criu.pid).state == "S", "the tracer to read")
            held, alone = dump_signs((criu.pid,), pids, log), dump_signs((criu.pid,), (), log)
            assert held is not None
            assert alone is not None
            assert held[1] == alone[1] + after[1]


def test_ended_process_counts_as_idle_and_causes_no_error() -> None:
    ended_pid = free_pid()
    assert work_done(ended_pid) == 0
    assert not waits_for_a_disk([ended_pid])
    assert not waits_for_a_program([ended_pid])


def test_process_waiting_for_input_does_not_count_as_waiting_for_a_disk(
    waiting_program: subprocess.Popen[bytes],
) -> None:
    assert not waits_for_a_disk([waiting_program.pid, os.getpid()])
    assert not waits_for_a_program([waiting_program.pid])


def test_process_waiting_in_pipe_read_waits_for_a_program(waiting_program: subprocess.Popen[bytes]) -> None:
    """The process reads from a pipe soon after it has reported that it is ready."""
    if os.geteuid() != 0:
        pytest.skip("only root reads the stacks of the kernel")
    wait_for(lambda: waits_for_a_program([waiting_program.pid], ("pipe_read",)), "the process to read")
