"""The rights of every thread of a tree, as the kernel has them."""

from __future__ import annotations

import os

import pytest
from small_programs import free_pid, program

from crckpt.host import proc
from crckpt.host.proc.task_states import TaskStates, read_task_states

PROGRAM_WITH_A_CONFINED_THREAD = """
import ctypes, threading
libc = ctypes.CDLL(None)
print('ready', flush=True)
def confined():
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, of this thread alone
    print(threading.get_native_id(), flush=True)
    threading.Event().wait()
threading.Thread(target=confined).start()
"""
PROGRAM_WITH_A_CHILD = """
if not os.fork():
    os.setgroups([7, 8])
    os.setresgid(11, 12, 13)
    os.setresuid(1, 2, 3)
    print('ready', flush=True)
sys.stdin.read()
"""
PROGRAM_IN_A_PID_NAMESPACE = f"""
import ctypes
ctypes.CDLL(None).unshare({0x20000000})  # CLONE_NEWPID
if not os.fork():
    print('ready', flush=True)
sys.stdin.read()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")


def test_threads_may_have_different_rights() -> None:
    with program(PROGRAM_WITH_A_CONFINED_THREAD) as process:
        assert process.stdout is not None
        tid = int(process.stdout.readline())
        found = read_task_states(process.pid).rights
    assert {number: rights.confined for number, rights in found.items()} == {process.pid: False, tid: True}
    own = read_task_states(os.getpid()).rights[os.getpid()]
    assert found[process.pid] == own


@needs_root
def test_children_have_their_own_rights() -> None:
    with program(PROGRAM_WITH_A_CHILD) as process:
        (child,) = proc.children(process.pid)
        found = read_task_states(process.pid).rights
        assert set(found) == {process.pid, child}
        assert found[process.pid].uids == (0, 0, 0, 0)
        assert found[child].uids == (1, 2, 3, 2)
        assert found[child].gids == (11, 12, 13, 12)
        assert found[child].groups == {7, 8}
        inherited, permitted, effective, bounding, ambient = found[child].capabilities
        assert (inherited, permitted, effective, ambient) == (0, 0, 0, 0)
        assert bounding == found[process.pid].capabilities[3]
        os.kill(child, 9)


@needs_root
def test_thread_has_the_number_of_its_namespace() -> None:
    """CRIU names the thread's image by that number."""
    with program(PROGRAM_IN_A_PID_NAMESPACE) as process:
        found = read_task_states(process.pid).rights
        assert set(found) == {process.pid, 1}
        for child in proc.children(process.pid):
            os.kill(child, 9)


def test_ended_tree_has_no_task_states() -> None:
    assert read_task_states(free_pid()) == TaskStates()
