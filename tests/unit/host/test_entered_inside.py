"""Attributes of processes, from outside and by a system call that they are made to make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from entering import compiled, running

from crckpt.host import attributes, cgroups
from crckpt.host.domains import kernel_has_landlock
from crckpt.host.inside import LOCKED_AT_ONCE, Order, enter

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter any process")

CONFINED = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == "nobody":
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
if sys.argv[2] == "confined":
    libc.prctl(38, 1, 0, 0, 0)
    handled = struct.pack("<Q", 1 << 11)
    ruleset = libc.syscall(444, handled, ctypes.c_size_t(8), 0)
    assert libc.syscall(446, ruleset, 0) == 0
print("ready", flush=True)
for line in sys.stdin:
    mode = ctypes.c_int(-1)
    assert libc.syscall(239, ctypes.byref(mode), None, 0, 0, 0) == 0
    print(mode.value, flush=True)
"""


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
def test_memory_policies(line: str, value: tuple[int, ...]) -> None:
    assert attributes.parse_memory_policy(line) == value


@pytest.mark.parametrize("path", ["/../../etc", "/a/../..", "a", "", "/./a", "/nowhere-at-all"])
def test_a_path_that_leads_out_of_the_groups_names_none(path: str) -> None:
    assert cgroups.directory("pids", path) is None
    assert cgroups.directory("", path) is None
    assert cgroups.directory("../../etc", "/") is None


@needs_root
@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("confined", ["free", "confined"])
def test_a_landlock_domain_is_found_whoever_has_it(user: str, confined: str) -> None:
    with running("/usr/bin/python3", "-c", CONFINED, user, confined) as process:
        (answer,) = enter([Order(process.pid, process.pid, "ask")])
        assert answer.why == ""
        assert ("landlock" in answer.values) == (confined == "confined")


@needs_root
def test_a_memory_policy_is_set_inside() -> None:
    """With nodes that lie in the thread's own memory while it is made to set them; the memory is as it was."""
    with running("/usr/bin/python3", "-c", CONFINED, "root", "free") as process:
        order = Order(process.pid, process.pid, "set", (("memory_policy", (3, 0)),))
        assert [(*answer.failed, answer.why) for answer in enter([order])] == [("",)]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "3\n"


@needs_root
def test_what_the_kernel_refuses_is_said() -> None:
    with running("/usr/bin/python3", "-c", CONFINED, "root", "free") as process:
        (answer,) = enter([Order(process.pid, process.pid, "set", (("no_written_code", (64,)), ("unknown", (1,))))])
        assert dict(answer.failed) == {"no_written_code": "Invalid argument", "unknown": "Function not implemented"}
        (answer,) = enter([Order(1 << 22, 1 << 22, "ask")])
        assert "there is no process" in answer.why


@needs_root
def test_a_32_bit_program_is_asked_too(tmp_path: Path) -> None:
    program = compiled("locks_32.c", tmp_path, "-m32", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-no-pie")
    with running(program) as process:
        (answer,) = enter([Order(process.pid, process.pid, "ask")])
        assert answer.why == ""
        assert answer.values["lock_future"] == (LOCKED_AT_ONCE,)
        assert answer.values["no_written_code"] == (1,)


LOCKING = """
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
def test_locking_is_found_while_another_thread_maps_and_unmaps(flags: str, locked: tuple[int, ...] | None) -> None:
    with running("/usr/bin/python3", "-c", LOCKING, flags) as process:
        answers = enter([Order(process.pid, process.pid, "ask")] * 200)
        assert {answer.values.get("lock_future") for answer in answers} == {locked}
