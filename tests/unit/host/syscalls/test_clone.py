"""New processes and namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from small_programs import free_pid

from crckpt.host.proc.status import namespace
from crckpt.host.syscalls.own_process import CLONE_NEWNET, fork_with_pid, setns, unshare


def test_child_gets_the_requested_pid() -> None:
    wanted = free_pid()
    try:
        child = fork_with_pid(wanted)
    except PermissionError:
        pytest.skip("needs CAP_CHECKPOINT_RESTORE")
    if child == 0:
        os._exit(7 if os.getpid() == wanted else 8)
    assert child == wanted
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_pid_in_use_is_refused() -> None:
    with pytest.raises((FileExistsError, PermissionError)):
        fork_with_pid(os.getpid())


def test_namespace_change_affects_only_this_thread() -> None:
    found: list[int | str] = []

    def leave_and_return() -> None:
        ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            unshare(CLONE_NEWNET)
            found.append(namespace("thread-self", "net"))
            setns(ours)
            found.append(namespace("thread-self", "net"))
        except PermissionError:
            found.append("not permitted")
        finally:
            os.close(ours)

    before = namespace("self", "net")
    thread = threading.Thread(target=leave_and_return)
    thread.start()
    thread.join()
    if found == ["not permitted"]:
        pytest.skip("no namespace can be made here")
    left, joined = found
    assert left != before
    assert joined == before == namespace("self", "net")


def test_descriptor_that_is_not_a_namespace_cannot_be_joined() -> None:
    code = "import os\nfrom crckpt.host.syscalls.own_process import setns\nsetns(os.open('/', os.O_RDONLY))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Invalid argument" in result.stderr
