"""A program whose restartable sequence covers code that others run in its threads never gets control of that code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from command import Crckpt
from incremental import wrapper
from stopped_trees import BY_NAME, JOB
from target_processes import NO_WRITE_PROTECTION, compile_program, preload_library, running
from trees import READY_S, started, wait_for

from crckpt.helper.calls.remote_calls import Order, carry_out, take_userfaultfds
from crckpt.host.proc.status import tracer
from crckpt.ops.context import Context
from crckpt.ops.dump.dump import dump
from crckpt.ops.dump.request import DumpRequest
from crckpt.tracking.preload import library

TRACER: Final = """
import ctypes, os, sys
SEIZE, INTERRUPT, GET, SET, STEP, DETACH, STATUS, POINTER = 0x4206, 0x4207, 0x4204, 0x4205, 9, 17, 1, 16
pid, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
registers = (ctypes.c_uint64 * 27)()
place = (ctypes.c_uint64 * 2)(ctypes.addressof(registers), ctypes.sizeof(registers))
def trace(request, address=0, data=None):
    if libc.ptrace(request, pid, ctypes.c_void_p(address), data):
        raise OSError(ctypes.get_errno(), request)
trace(SEIZE)
trace(INTERRUPT)
os.waitpid(pid, 0)
trace(GET, STATUS, place)
before = bytes(registers)
code = next(int(line.split("-")[0], 16) for line in open(f"/proc/{pid}/maps") if " r-xp " in line)
registers[POINTER] = code
registers[POINTER - 1] = 2**64 - 1
trace(SET, STATUS, place)
trace(STEP)
os.waitpid(pid, 0)
ctypes.memmove(registers, before, len(before))
trace(SET, STATUS, place)
trace(DETACH)
"""
"""It lets a thread run one instruction somewhere else, as CRIU before 4.2.1 does, whatever the sequence."""


class SequenceProgram(NamedTuple):
    """A program that counts in `counts` how often it got control."""

    process: subprocess.Popen[str]
    counts: Path

    def is_unharmed(self) -> bool:
        """Return whether the sequence never got control, and the program continues."""
        has_count = any(self.counts.read_bytes())
        return not has_count and self.process.poll() is None and not tracer(self.process.pid, self.process.pid)


@pytest.fixture
def sequence_program(tmp_path: Path) -> Iterator[SequenceProgram]:
    program, counts = compile_program("seizing.c", tmp_path), tmp_path / "counts"
    with running(program, str(counts)) as process:
        wait_for(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith("7 "), READY_S, "it to wait")
        yield SequenceProgram(process, counts)


@pytest.mark.parametrize("with_library", [False, True], ids=["alone", "library"])
def test_sequence_never_runs_code_of_criu(
    sequence_program: SequenceProgram, tmp_path: Path, with_library: bool
) -> None:
    """The library that crckpt loads into CRIU aborts the sequence."""
    environment = {"LD_PRELOAD": str(preload_library(tmp_path))} if with_library else {}
    words = [sys.executable, "-S", "-c", TRACER, str(sequence_program.process.pid)]
    subprocess.run(words, env=environment, check=True, timeout=60)
    assert any(sequence_program.counts.read_bytes()) != with_library


def test_dump_and_restore_do_not_run_a_restartable_sequence(crckpt: Crckpt, sequence_program: SequenceProgram) -> None:
    crckpt.run("dump", str(sequence_program.process.pid), JOB, "--stop", "--force")
    sequence_program.process.wait(60)
    crckpt.run("restore", JOB, "--detach")
    assert not any(sequence_program.counts.read_bytes())


def test_without_the_library_a_dump_names_a_suitable_criu(
    crckpt: Crckpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only programs of users other than root need the library."""
    older = wrapper(tmp_path, '[ "$1" != --version ] || { echo Version: 4.2; exit; }')
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none")
    context = Context(store=crckpt.store, criu_option=older)
    for name, is_named in (("nobody", True), ("counter", False)):
        with started(BY_NAME[name]) as tree:
            done = dump(DumpRequest(target=str(tree.pid), job=name), context)
        assert ("criu-unsafe" in {found.key for found in done.plan.warnings}) == is_named


def test_system_calls_that_crckpt_injects_do_not_run_a_restartable_sequence(sequence_program: SequenceProgram) -> None:
    pid = sequence_program.process.pid
    (answer,) = carry_out([Order(pid, pid, "ask")])
    assert (answer.why, sequence_program.is_unharmed()) == ("", True)
    if not NO_WRITE_PROTECTION:
        (taken,) = take_userfaultfds([pid])
        assert (taken.why, sequence_program.is_unharmed()) == ("", True)
