"""The owners of signals of descriptors in a frozen tree, as the kernel records them."""

from __future__ import annotations

import os

import pytest
from small_programs import program

from crckpt.host import proc
from crckpt.host.attributes.signal_owners import add_signal_owners
from crckpt.host.proc.task_states import FileOwner, TaskStates, read_task_states

# A pipe whose signals user 1 sends, inherited by a child of user 2. F_SETOWN of a group: its negative number.
PROGRAM_WITH_SIGNAL_OWNERS = """
import ctypes, fcntl
ctypes.CDLL(None).unshare({namespaces})
if os.fork():
    sys.stdin.read()
    os._exit(0)
for number in (50, 51):
    for end in os.pipe():
        os.dup2(end, number)
        os.close(end)
done, note = os.pipe()
os.setsid()
os.setresuid(1, 1, 0)
fcntl.fcntl(50, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(51, fcntl.F_SETOWN, -os.getpid())
os.setresuid(1, 0, 0)
child = os.fork()
if not child:
    os.setresuid(2, 2, 2)
    os.write(note, b".")
if child:
    os.read(done, 1)
    os.setresuid(1, 1, 1)
    print('ready', flush=True)
import signal
signal.pause()
"""
CLONE_NEWPID = 0x20000000


def read_owners(namespaces: int) -> tuple[TaskStates, list[int]]:
    with program(PROGRAM_WITH_SIGNAL_OWNERS.format(namespaces=namespaces)) as process:
        (parent,) = proc.children(process.pid)
        (child,) = proc.children(parent)
        states = add_signal_owners(read_task_states(process.pid))
        for pid in (child, parent):
            os.kill(pid, 9)
    return states, [1, 2] if namespaces else [parent, child]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")
@pytest.mark.parametrize("namespaces", [0, CLONE_NEWPID])
def test_signal_owner_is_the_process_that_set_it_and_not_one_that_inherited_the_descriptor(namespaces: int) -> None:
    """A process that inherited the descriptor is not the owner. Numbers are those in the PID namespace."""
    states, (parent, child) = read_owners(namespaces=namespaces)
    expected = {50: FileOwner(1, parent, (1, 1)), 51: FileOwner(2, parent, (1, 1))}
    assert states.processes[parent].owners == expected
    assert states.processes[child].owners == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_signal_owners_of_a_process_with_all_our_rights_are_not_read() -> None:
    states, _ = read_owners(namespaces=0)
    assert [state.owners for state in states.processes.values() if state.is_trusted] == [None]


def test_signal_owners_of_a_tree_of_one_user_are_not_read() -> None:
    states = read_task_states(os.getpid())
    assert add_signal_owners(states) is states
