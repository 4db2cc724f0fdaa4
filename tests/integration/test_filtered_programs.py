"""A program with filters of system calls: they hold while CRIU's code, which may call anything, is in its memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import Crckpt
from stopped_trees import JOB
from target_processes import compile_program, running
from trees import READY_S, wait_for

from crckpt.tracking.preload.library import restarts_calls

NOBODY = 65534
pytestmark = pytest.mark.skipif(not restarts_calls(), reason="CRIU has no preload library")


def compile_overwritten(into: Path) -> str:
    return compile_program("overwritten.c", into, "-O1", "-pthread", "-fno-stack-protector", "-fcf-protection=none")


@contextmanager
def overwriting(how: str, directory: Path) -> Iterator[tuple[str, Path]]:
    """A program, its PID, and the directory that it may not make. Another process tries to have CRIU's code make it."""
    program = compile_overwritten(directory)
    work = directory / "work"
    work.mkdir(0o777)
    work.chmod(0o777)
    # The program uses a relative path, because other users may not enter the directories above.
    with running(program, how, "made", cwd=work) as process:
        yield str(process.pid), work / "made"


def test_processes_of_the_same_user_cannot_use_criu_to_get_around_filters(crckpt: Crckpt, tmp_path: Path) -> None:
    with overwriting("opens-late", tmp_path) as (pid, made):
        for _ in range(3):
            crckpt.run("dump", pid, JOB)
            assert not made.exists()


def test_dump_of_a_filtered_program_is_refused_if_another_process_has_its_memory_open(
    crckpt: Crckpt, tmp_path: Path
) -> None:
    with overwriting("opens-early", tmp_path) as (pid, made):
        failed = crckpt.run("dump", pid, JOB, status=21)
        assert f"has the memory of process {pid} open (/proc/PID/mem)" in failed.err
        assert not made.exists()
        assert Path(f"/proc/{pid}").stat().st_uid == NOBODY


@pytest.mark.parametrize("words", [(), ("--pre-copy",)], ids=["at once", "in rounds"])
def test_program_with_a_filtered_thread_can_read_proc_and_sleeps_on_after_a_dump(
    crckpt: Crckpt, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Only one of the program's threads has filters."""
    with running(compile_overwritten(tmp_path), "reads", str(tmp_path / "counts")) as process:
        for _ in range(2):
            crckpt.run("dump", str(process.pid), JOB, *words)
            wait_for_reads(tmp_path)
        assert counts(tmp_path)[1:] == (0, 0)
        assert Path(f"/proc/{process.pid}").stat().st_uid == NOBODY
        crckpt.run("dump", str(process.pid), JOB, "--stop", "--force", *words)
        process.wait(60)
        restored = crckpt.run("restore", JOB, "--detach", "--json").document["result"]["pid"]
        wait_for_reads(tmp_path)
        assert counts(tmp_path)[1] == 0
        assert Path(f"/proc/{restored}").stat().st_uid == NOBODY


def wait_for_reads(directory: Path) -> None:
    before = counts(directory)[0]
    wait_for(lambda: counts(directory)[0] > before + 100, READY_S, "it to keep running")


def counts(directory: Path) -> tuple[int, ...]:
    """How often the program could open its file, how often it could not, and how often its sleep ended early."""
    return struct.unpack("<3q", (directory / "counts").read_bytes()[:24])
