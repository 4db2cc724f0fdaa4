"""The rights of a live tree: of all its threads."""

from __future__ import annotations

import os

import pytest
from target_processes import StatementRunner

from crckpt.errors import PreflightRefused
from crckpt.migrate.preflight.recheck import Right, read_rights, refuse_new_rights

pytestmark = pytest.mark.usefixtures("is_root")

# A thread alone: the system call, not the function of the C library, which changes all threads.
_IN_A_THREAD = """
import ctypes, os, threading
is_changed = threading.Event()
def change():
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall({number}, 4242, 4242, 4242) == 0
    is_changed.set()
    threading.Event().wait()
threading.Thread(target=change, daemon=True).start()
is_changed.wait()
"""
_CHILD = """
reads, writes = os.pipe()
if not os.fork():
    os.setuid(4343)
    # SIGKILL at the end of its parent (PR_SET_PDEATHSIG)
    ctypes.CDLL(None).prctl(1, 9)
    os.write(writes, b"x")
    threading.Event().wait()
os.read(reads, 1)
"""
_SETRESUID = {"x86_64": 117, "aarch64": 147}


@pytest.fixture
def user_program(target: StatementRunner) -> StatementRunner:
    """A program of an ordinary user."""
    target.do("os.setgroups([4343]); os.setresgid(4141, 4141, 4141); os.setresuid(4141, 4141, 0)")
    return target


def test_program_that_can_become_root_needs_no_other_rights(user_program: StatementRunner) -> None:
    assert read_rights((user_program.pid,)) == frozenset()
    user_program.do("os.setresuid(0, 0, 0); os.setresuid(4141, 4141, 4141)")
    own: set[Right] = {("user", 4141), ("group", 4141), ("group", 4343)}
    assert read_rights((user_program.pid,)) == own
    refuse_new_rights(user_program.pid, frozenset(own))
    with pytest.raises(PreflightRefused, match="the rights of group 4343 since the check"):
        refuse_new_rights(user_program.pid, frozenset(own - {("group", 4343)}))


def test_rights_of_threads_and_children_count_for_a_move(target: StatementRunner) -> None:
    number = _SETRESUID.get(os.uname().machine)
    if number is None:
        pytest.skip("the number of the system call is not known")
    target.do(f"exec({_IN_A_THREAD.format(number=number)!r})")
    assert ("user", 4242) in read_rights((target.pid,))
    with pytest.raises(PreflightRefused, match="user 4242"):
        refuse_new_rights(target.pid, frozenset({("group", 0)}))
    target.do(f"exec({_CHILD!r})")
    compared = read_rights((target.pid,))
    with pytest.raises(PreflightRefused, match="user 4343"):
        refuse_new_rights(target.pid, compared)
