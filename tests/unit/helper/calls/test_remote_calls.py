"""Attributes of processes, from outside and by a system call that they are made to make."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confined_program import CONFINED, needs_root
from msgspec.structs import replace
from smaller_bounds import smaller_bounds
from target_processes import compile_program, running

from crckpt.helper.calls import remote_calls
from crckpt.helper.calls.remote_calls import LOCKED_AT_ONCE, Order, carry_out
from crckpt.host import proc


@needs_root
def test_process_with_a_reused_pid_is_not_entered() -> None:
    with running("/usr/bin/python3", "-c", CONFINED, "nobody", "free") as process:
        found = proc.read_process(process.pid)
        assert found is not None
        processes = (found.identity, replace(found.identity, start=found.start + 1))
        orders = [Order(each.pid, each.pid, "ask", process=each) for each in processes]
        whys = [answer.why for answer in carry_out(orders)]
        assert whys == ["", f"PID {process.pid} has ended, and another process has its PID now"]
        after = proc.read_process(process.pid)
        assert after is not None
        assert (after.tracer, after.start) == (0, found.start)


@needs_root
def test_blocked_helper_is_abandoned_after_a_limit() -> None:
    """A helper can block on a FUSE file system that the program serves. Here SIGSTOP stops the helper instead."""
    with (
        smaller_bounds(remote_calls, _PATIENCE_S=1.0),
        running("/usr/bin/python3", "-c", CONFINED, "nobody", "free") as process,
        ThreadPoolExecutor(1) as pool,
    ):
        pending = pool.submit(carry_out, [Order(process.pid, process.pid, "ask")] * 50)
        while not (helpers := _helpers()):
            assert not pending.done()
        (helper,) = helpers
        os.kill(helper, signal.SIGSTOP)
        try:
            answers = pending.result(20)
        finally:
            os.kill(helper, signal.SIGCONT)
            os.waitpid(helper, 0)
    assert len(answers) == 50
    assert "got no answer" in answers[-1].why


@needs_root
def test_process_that_is_started_as_the_programs_user_can_be_ended() -> None:
    """The user may change the process: it has no blocked signals and no protection from the OOM killer."""
    seen: set[tuple[bool, str]] = set()
    with running("/usr/bin/python3", "-c", CONFINED, "nobody", "free") as process, ThreadPoolExecutor(1) as pool:
        entered = pool.submit(carry_out, [Order(process.pid, process.pid, "ask")] * 20)
        while not entered.done():
            for child in (each for helper in _helpers() for each in proc.children(helper)):
                with suppress(OSError):
                    status = Path(f"/proc/{child}/status").read_text()
                    if "\nUid:\t65534\t" in status:
                        blocked = status.split("\nSigBlk:\t")[1].split("\n")[0]
                        seen.add(
                            (
                                bool(int(blocked, 16) >> signal.SIGTERM - 1 & 1),
                                Path(f"/proc/{child}/oom_score_adj").read_text().strip(),
                            )
                        )
        assert all(not answer.why for answer in entered.result())
    assert seen == {(False, Path("/proc/self/oom_score_adj").read_text().strip())}


def _helpers() -> list[int]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "crckpt.helper.calls.remote_caller" in child.cmdline():
                found.append(child.pid)
    return found


@needs_root
@pytest.mark.parametrize("how", ["spins", "changes"])
def test_system_call_filter_allows_only_our_own_calls(tmp_path: Path, how: str) -> None:
    """The filter applies while the thread stops, and if another thread replaces our call by other code."""
    program, made = compile_program("filtered.c", tmp_path, "-O1", "-pthread"), tmp_path / "made"
    with running(program, how, str(made), ready="") as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip("the vdso cannot be changed here")
        for _ in range(4):
            carry_out([Order(process.pid, process.pid, "ask")] * 8)
        assert not made.exists()


@needs_root
def test_memory_policy_of_a_process_is_set_by_a_call_inside_it() -> None:
    """The nodes are in the thread's own memory during the call; afterwards the memory is as before."""
    with running("/usr/bin/python3", "-c", CONFINED, "root", "free") as process:
        order = Order(process.pid, process.pid, "set", (("memory_policy", (3, 0)),))
        assert [(*answer.failed, answer.why) for answer in carry_out([order])] == [("",)]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "3\n"


@needs_root
def test_system_call_that_the_kernel_refuses_is_reported() -> None:
    with running("/usr/bin/python3", "-c", CONFINED, "root", "free") as process:
        (answer,) = carry_out([Order(process.pid, process.pid, "set", (("no_written_code", (64,)), ("unknown", (1,))))])
        assert dict(answer.failed) == {"no_written_code": "Invalid argument", "unknown": "Function not implemented"}
        (answer,) = carry_out([Order(1 << 22, 1 << 22, "ask")])
        assert "there is no process" in answer.why


@needs_root
def test_32_bit_program_is_queried(tmp_path: Path) -> None:
    program = compile_program(
        "locks_32.c", tmp_path, "-m32", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-no-pie"
    )
    with running(program) as process:
        (answer,) = carry_out([Order(process.pid, process.pid, "ask")])
        assert answer.why == ""
        assert answer.values["lock_future"] == (LOCKED_AT_ONCE,)
        assert answer.values["no_written_code"] == (1,)


PROGRAM_WITH_LOCKED_MEMORY = """
import ctypes, mmap, sys, threading
libc = ctypes.CDLL(None)
def churn():
    while True:
        mmap.mmap(-1, 3 * mmap.PAGESIZE).close()
threading.Thread(target=churn, daemon=True).start()
assert libc.mlockall(int(sys.argv[1])) == 0
print("ready", flush=True)
sys.stdin.readline()
"""


@needs_root
@pytest.mark.parametrize(("flags", "locked"), [("1", None), ("3", (1,)), ("7", (2,))])
def test_memory_locking_is_read_while_another_thread_maps(flags: str, locked: tuple[int, ...] | None) -> None:
    with running("/usr/bin/python3", "-c", PROGRAM_WITH_LOCKED_MEMORY, flags) as process:
        answers = carry_out([Order(process.pid, process.pid, "ask")] * 200)
        assert {answer.values.get("lock_future") for answer in answers} == {locked}
