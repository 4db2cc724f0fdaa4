"""The live tree, read from /proc: real children say what they are, and are read while they end."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from small_programs import WAIT_STATEMENTS, free_pid, program, read

from crckpt.host import proc

PTRACE_TRACEME = 0


def test_process_is_read_with_its_ids_and_users(waiting_program: subprocess.Popen[bytes]) -> None:
    found, own = read(waiting_program.pid), read(os.getpid())
    assert (found.pid, found.ppid, found.pgid, found.sid) == (
        waiting_program.pid,
        os.getpid(),
        waiting_program.pid,
        waiting_program.pid,
    )
    assert (found.threads, found.ns_pids[0], found.tracer) == ((waiting_program.pid,), waiting_program.pid, 0)
    assert (found.uids, found.gids) == ((os.getuid(),) * 4, (os.getgid(),) * 4)
    assert found.comm.startswith("python")
    assert found.state in ("sleeping", "running")
    assert found.start >= own.start
    assert not found.is_kernel_thread
    assert found.namespaces == own.namespaces
    assert dict(found.namespaces)["mnt"] == proc.namespace("self", "mnt") == proc.namespace(waiting_program.pid, "mnt")


@pytest.mark.parametrize("comm", [b") R 1 (x", b"a b\tc", b"\xff\xfe", b"x\nPPid:\t1", b"x\x0cUid:\t5"])
def test_process_with_any_comm_is_read(comm: bytes) -> None:
    with program(f"open('/proc/self/comm', 'wb').write({comm!r}); {WAIT_STATEMENTS}") as process:
        found = read(process.pid)
        assert found.comm == comm.decode(errors="replace")
        assert (found.ppid, found.uids) == (os.getpid(), (os.getuid(),) * 4)


def test_queries_about_a_missing_process_return_nothing() -> None:
    pid = free_pid()
    assert proc.read_process(pid) is None
    assert (proc.descriptors(pid), proc.find_deleted_mapped_files(pid)) == ((), ())
    assert (proc.command_line(pid), proc.working_directory(pid)) == ((), "")
    assert (proc.ancestors(pid), proc.children(pid)) == ((), ())


def test_thread_is_not_a_process() -> None:
    """/proc has a directory for a thread's id, too, but does not list it."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert Path(f"/proc/{thread.native_id}/stat").exists()
        assert proc.read_process(thread.native_id) is None
        assert thread.native_id in read(os.getpid()).threads
        (owner,) = proc.find_id_users([thread.native_id])
        assert (owner.role, owner.pid) == ("thread", os.getpid())
    finally:
        stop.set()
        thread.join()


def test_zombie_is_read_with_its_state_and_parent(zombie: int) -> None:
    found = read(zombie)
    assert (found.state, found.ppid) == ("zombie", os.getpid())
    assert (proc.descriptors(zombie), proc.find_deleted_mapped_files(zombie), proc.command_line(zombie)) == ((), (), ())
    assert proc.find_id_users([zombie])[0].state == "zombie"


def test_traced_process_names_its_tracer() -> None:
    with program(f"import ctypes; ctypes.CDLL(None).ptrace({PTRACE_TRACEME}, 0, 0, 0); {WAIT_STATEMENTS}") as process:
        assert read(process.pid).tracer == os.getpid()


def test_kernel_threads_are_recognized() -> None:
    if "kthreadd" not in (Path("/proc/2/comm").read_text() if Path("/proc/2/comm").exists() else ""):
        pytest.skip("no kernel thread is visible in this pid namespace")
    assert read(2).is_kernel_thread


FAMILY = f"""
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        sys.stdin.read()
        os._exit(0)
    print(os.getpid(), grandchild, flush=True)
    sys.stdin.read()
    os._exit(0)
{WAIT_STATEMENTS}
"""


def test_tree_lists_parents_before_children(waiting_program: subprocess.Popen[bytes]) -> None:
    with program(FAMILY.replace("print('ready', flush=True); ", "")) as process:
        tree = proc.read_tree(read(process.pid))
        parents = {found.pid: found.ppid for found in tree.processes}
        assert tree.root.pid == tree.pids[0] == process.pid
        assert len(tree.pids) == 3
        child, grandchild = tree.pids[1:]
        assert (parents[child], parents[grandchild]) == (process.pid, child)
        assert waiting_program.pid not in tree.pids
        assert proc.children(process.pid) == (child,)
        assert proc.ancestors(grandchild)[:3] == (child, process.pid, os.getpid())
        for pid in (grandchild, child):
            os.kill(pid, 9)


FORKING_PROGRAM = """
import random, select
print('ready', flush=True)
pids = []
while True:
    pids.append(os.fork())
    if not pids[-1]:
        os.open('/dev/null', os.O_RDONLY)
        select.select([], [], [], random.random() * 0.02)
        os._exit(0)
    if len(pids) > 4:
        os.waitpid(pids.pop(0), 0)
"""


def test_processes_may_end_while_they_are_read() -> None:
    seen: set[int] = set()
    began = time.monotonic()
    with program(FORKING_PROGRAM) as process:
        root = read(process.pid)
        # Continue until some short-lived children have been seen besides the program.
        while time.monotonic() < began + 1 or len(seen) <= 10:
            tree = proc.read_tree(root)
            seen.update(tree.pids)
            for pid in tree.pids:
                proc.descriptors(pid)
                proc.find_deleted_mapped_files(pid)
            proc.find_id_users([process.pid])
    assert proc.descriptors(process.pid) == ()


def test_ended_tasks_are_recognized(waiting_program: subprocess.Popen[bytes], zombie: int) -> None:
    """Missing tasks and zombies have ended."""
    gone = free_pid()
    tasks = [(waiting_program.pid, waiting_program.pid), (waiting_program.pid, gone), (gone, gone), (zombie, zombie)]
    assert proc.find_ended_tasks(tasks) == (gone, gone, zombie)
    assert proc.find_ended_tasks(tasks, os.getpid()) == (gone, gone, zombie)


def test_wait_until_gone_returns_the_processes_that_remain(
    waiting_program: subprocess.Popen[bytes], zombie: int
) -> None:
    assert proc.wait_until_gone([free_pid()], 0) == ()
    assert proc.wait_until_gone([waiting_program.pid, zombie], 0.03) == (waiting_program.pid, zombie)
    reaper = threading.Timer(0.05, os.waitpid, (zombie, 0))
    reaper.start()
    assert proc.wait_until_gone([zombie], 3600) == ()
    reaper.join()
