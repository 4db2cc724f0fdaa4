"""What a restore sets last: the dumpable flag and restartable sequences come back as they were, and not before."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import pytest
from command import Crckpt
from incremental import executable
from stopped_trees import BY_NAME, JOB, stopped
from target_processes import compile_program, restore_library, running
from trees import NOBODY, PYTHON, READY_S, Case, open_workdir, started, wait_for

from crckpt.criu.find import find
from crckpt.errors import RestoreFailed
from crckpt.ops.context import Context
from crckpt.ops.restore.request import RestoreRequest
from crckpt.ops.restore.restore import restore
from crckpt.tracking.preload import library

pytestmark = [
    pytest.mark.usefixtures("orphans_are_reaped"),
    pytest.mark.skipif(not library.makes_last_calls(), reason="there was no C compiler, or the kernel is too old"),
]

FAILED: Final = 23
RESULTS_OFFSET: Final = 64
"""Where aiming.c says whether it got control."""
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# Threads that wake up often, so that the kernel notes where they run.
PROGRAM_WITH_AWAKE_THREADS: Final = """
import ctypes, os, sys, threading, time
from selfcheck import Program
from pathlib import Path
def wake():
    while True:
        time.sleep(0.01)
for _ in range(3):
    threading.Thread(target=wake, daemon=True).start()
ctypes.CDLL(None).prctl(4, int(sys.argv[2]), 0, 0, 0)
Program(Path(sys.argv[1])).run(lambda: None)
"""
# CRIU takes long to give its last thread the filters of system calls, and has finished the first one before.
PROGRAM_WITH_FILTERS: Final = """
import ctypes, os, struct, sys, threading
from pathlib import Path
from selfcheck import Program
libc = ctypes.CDLL(None, use_errno=True)
rules = struct.pack("=HBBI", 0x20, 0, 0, 0) * 4095 + struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)
rules = ctypes.create_string_buffer(rules)
program = struct.pack("=H6xQ", 4096, ctypes.addressof(rules))
ready = threading.Event()
def confined():
    libc.prctl(38, 1, 0, 0, 0)
    for _ in range(7):
        assert libc.syscall(317, 1, 0, program) == 0
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    ready.set()
    threading.Event().wait()
threading.Thread(target=confined, daemon=True).start()
ready.wait()
Program(Path(sys.argv[1])).run(lambda: None)
"""
# Prints the descriptors, and the code outside of files, that a user sees in the process as soon as they can look.
WATCHING_PROGRAM: Final = """
import json, os, sys, time
pid, end, found = sys.argv[1], time.monotonic() + 60, None
print("ready", flush=True)
while found is None and time.monotonic() < end:
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")))
        links = {number: os.readlink(f"/proc/{pid}/fd/{number}") for number in numbers}
        maps = [line.split() for line in open(f"/proc/{pid}/maps")]
        code = [" ".join(each) for each in maps if "x" in each[1] and len(each) == 5]
        found = {"links": links, "code": code}
    except OSError:
        pass
print(json.dumps(found), flush=True)
"""


def case_of(name: str, program: str, *arguments: str) -> Case:
    """A program of an ordinary user."""
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", program, "{workdir}", *arguments)
    return Case(name, (*AS_NOBODY, *words), user=NOBODY)


RSEQ_READER: Final = """
import json, os, struct, sys
from crckpt.host.syscalls import ptrace_requests
found = []
for tid in sorted(map(int, os.listdir(f"/proc/{sys.argv[1]}/task"))):
    ptrace_requests.seize(tid)
    ptrace_requests.interrupt(tid)
    os.waitpid(tid, 0x40000000)  # __WALL
    found.append(struct.unpack_from("<QII", ptrace_requests.read_state(tid, ptrace_requests.RSEQ)))
    ptrace_requests.call("detach", tid)
print(json.dumps(found))
"""


def areas(pid: int) -> list[tuple[int, int, int]]:
    """The area of each thread, as the kernel has it: address, size and signature."""
    # A separate process waits for the stop, because this process also reaps the tree and could miss the stop.
    words = (sys.executable, "-c", RSEQ_READER, str(pid))
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=READY_S)
    return [tuple(each) for each in json.loads(found.stdout)]


def noted_cpus(pid: int, places: list[tuple[int, int, int]]) -> set[int]:
    """Return on which CPUs the threads run, as the kernel has written it to their areas."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        return {struct.unpack("<I", os.pread(memory.fileno(), 4, place + 4))[0] for place, _, _ in places}


@pytest.mark.parametrize("words", [(), ("--new-pid-namespace",)], ids=["pids", "new"])
@pytest.mark.parametrize("dumpable", [1, 0])
def test_dumpable_flag_and_restartable_sequences_are_restored(
    crckpt: Crckpt, dumpable: int, words: tuple[str, ...]
) -> None:
    """Every thread has its sequence, and the kernel again writes the CPU that the thread runs on."""
    with started(case_of("awake", PROGRAM_WITH_AWAKE_THREADS, str(dumpable))) as tree:
        wait_for(lambda: len(list(Path(f"/proc/{tree.pid}/task").iterdir())) == 4, READY_S, "its threads")
        before, counters = areas(tree.pid), tree.counters()
        assert all(place for place, _, _ in before)
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        pid = crckpt.run("restore", JOB, "--detach", "--json", *words).document["result"]["pid"]
        tree.wait_growth(counters)
        assert Path(f"/proc/{pid}/mem").stat().st_uid == (NOBODY if dumpable else 0)
        assert areas(pid) == before
        for cpu in os.sched_getaffinity(0):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {cpu})
            wait_for(lambda: noted_cpus(pid, before) == {cpu}, READY_S, "the kernel to note it")  # noqa: B023
        end(pid)


@contextmanager
def watched(pid: int) -> Iterator[subprocess.Popen[str]]:
    """Let the user look into the process as soon as they may."""
    with running(*AS_NOBODY, sys.executable, "-S", "-c", WATCHING_PROGRAM, str(pid)) as watcher:
        yield watcher


def test_restored_process_has_no_descriptor_or_code_of_criu_once_its_user_can_look(crckpt: Crckpt) -> None:
    """The process has only its own descriptors then."""
    with started(case_of("filtered", PROGRAM_WITH_FILTERS)) as tree:
        links = {each.name: str(each.readlink()) for each in Path(f"/proc/{tree.pid}/fd").iterdir()}
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        with watched(tree.pid) as watcher:
            assert watcher.stdout is not None
            crckpt.run("restore", JOB, "--detach")
            found = json.loads(watcher.stdout.readline())
    assert found == {"links": links, "code": []}


def test_restartable_sequence_that_a_user_points_into_criu_never_runs_as_root(crckpt: Crckpt) -> None:
    """Another process of the user writes to the area all the time."""
    with open_workdir() as workdir:
        options = ("-O1", "-fno-stack-protector", "-fcf-protection=none")
        program, shared = compile_program("aiming.c", workdir, *options), workdir / "shared"
        shared.write_bytes(bytes(mmap.PAGESIZE))
        os.chown(shared, NOBODY, NOBODY)
        words = (*AS_NOBODY, "env", "GLIBC_TUNABLES=glibc.pthread.rseq=0", program)
        with running(*words, "program", str(shared)) as process:
            pid = process.pid
            crckpt.run("dump", str(pid), JOB, "--stop", "--force")
            process.wait(60)
        with running(*words, "aim", str(shared)), shared.open("rb") as file:
            for _ in range(3):
                crckpt.run("restore", JOB, "--detach", "--written", "keep")
                wait_for(lambda: any(caught(file)) or bool(sleeps(pid)), READY_S, "it to run")
                assert not caught(file)[0]
                end(pid)


def caught(file: BinaryIO) -> tuple[int, int]:
    """Return whether the program got control as root, and as its user."""
    as_root, as_user = struct.unpack("=2i", os.pread(file.fileno(), 8, RESULTS_OFFSET))
    return as_root, as_user


def sleeps(pid: int) -> bool:
    """Return whether the process waits in pause(2)."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().startswith("34 ")
    except OSError:
        return False


def end(pid: int) -> None:
    """End the process, if it still runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    # Orphans are our children, unless they have an init of their own.
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("records[i].size, 0, records", "records[i].size, 2, records", r"rseq \(-22\)"),
        ('"\\x0f\\x05"', '"\\x00\\x00"', r"it did not make the call"),
        ("{PR_SET_DUMPABLE, 1}", "{PR_SET_DUMPABLE, 3}", r"PR_SET_DUMPABLE \(-22\)"),
    ],
    ids=["registration", "instruction", "flag"],
)
def test_restored_program_does_not_run_if_a_last_call_injected_into_it_fails(
    crckpt: Crckpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, why: str
) -> None:
    """The kernel refuses a call, or the memory has something else in the place of the instruction."""
    changed = restore_library(tmp_path, old, new)
    with stopped(crckpt, BY_NAME["threads"]) as tree:
        with monkeypatch.context() as patched:
            patched.setattr(library, "RESTORE_LIBRARY", changed)
            with pytest.raises(RestoreFailed) as failed:
                restore(RestoreRequest(JOB, detach=True), Context(store=crckpt.store))
        assert failed.match(rf"could not give process \d+ its restartable sequences or its dumpable flag.*{why}")
        assert not Path(f"/proc/{tree.pid}").exists()
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_program_without_a_vdso_makes_the_last_calls_by_its_own_code(
    crckpt: Crckpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the program is afterwards as before."""
    finds_none = restore_library(tmp_path, "if (!memcmp(code + i", "if (0 && !memcmp(code + i")
    with started(case_of("awake", PROGRAM_WITH_AWAKE_THREADS, "1")) as tree:
        before, counters = areas(tree.pid), tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        with monkeypatch.context() as patched:
            patched.setattr(library, "RESTORE_LIBRARY", finds_none)
            restore(RestoreRequest(JOB, detach=True), Context(store=crckpt.store))
        tree.wait_growth(counters)
        assert areas(tree.pid) == before
        assert Path(f"/proc/{tree.pid}/mem").stat().st_uid == NOBODY


def test_criu_that_does_not_load_the_library_fails_the_restore(crckpt: Crckpt, tmp_path: Path) -> None:
    drops = executable(tmp_path / "criu", f'unset CRCKPT_CRIU_PRELOAD\nexec {find(None, None).path} "$@"')
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        result = crckpt.run("restore", JOB, "--detach", "--criu", str(drops), status=FAILED)
        assert "this CRIU does not load crckpt's preload library" in result.err
        assert not Path(f"/proc/{tree.pid}").exists()
