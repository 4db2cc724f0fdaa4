"""The live tree, read from /proc: real children say what they are, and are read while they end."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crckpt.host import proc

EFD_SEMAPHORE = 1
PTRACE_TRACEME = 0
WAITS = "print('ready', flush=True); sys.stdin.read()"


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program in a session of its own, which has said that it is ready; ended and reaped afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import os, sys\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the program ended before it was ready"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    """A program that does nothing."""
    with program(WAITS) as process:
        yield process


@pytest.fixture
def ended() -> Iterator[int]:
    """The PID of a process that has ended and is not reaped yet."""
    process = subprocess.Popen(["/bin/true"], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


def read(pid: int) -> proc.Process:
    found = proc.read_process(pid)
    assert found is not None
    return found


def free_pid() -> int:
    """A PID that was ours a moment ago."""
    process = subprocess.Popen(["/bin/true"], stdin=subprocess.DEVNULL)
    process.wait()
    return process.pid


def descriptor(fd: int) -> proc.Descriptor:
    """One of our own."""
    (found,) = (found for found in proc.descriptors(os.getpid()) if found.fd == fd)
    return found


def test_a_process_says_what_it_is(waiting: subprocess.Popen[bytes]) -> None:
    found, own = read(waiting.pid), read(os.getpid())
    assert (found.pid, found.ppid, found.pgid, found.sid) == (waiting.pid, os.getpid(), waiting.pid, waiting.pid)
    assert (found.threads, found.ns_pids[0], found.tracer) == ((waiting.pid,), waiting.pid, 0)
    assert (found.uids, found.gids) == ((os.getuid(),) * 4, (os.getgid(),) * 4)
    assert found.comm.startswith("python")
    assert found.state in ("sleeping", "running")
    assert found.start >= own.start
    assert not found.is_kernel_thread
    assert found.namespaces == own.namespaces
    assert dict(found.namespaces)["mnt"] == proc.namespace("self", "mnt") == proc.namespace(waiting.pid, "mnt")


@pytest.mark.parametrize("comm", [b") R 1 (x", b"a b\tc", b"\xff\xfe", b"x\nPPid:\t1", b"x\x0cUid:\t5"])
def test_no_comm_confuses_the_reader(comm: bytes) -> None:
    with program(f"open('/proc/self/comm', 'wb').write({comm!r}); {WAITS}") as process:
        found = read(process.pid)
        assert found.comm == comm.decode(errors="replace")
        assert (found.ppid, found.uids) == (os.getpid(), (os.getuid(),) * 4)


def test_no_process() -> None:
    pid = free_pid()
    assert proc.read_process(pid) is None
    assert (proc.descriptors(pid), proc.find_deleted_mapped_files(pid)) == ((), ())
    assert (proc.command_line(pid), proc.working_directory(pid)) == ((), "")
    assert (proc.ancestors(pid), proc.children(pid)) == ((), ())


def test_a_thread_is_no_process() -> None:
    """/proc answers to a thread's id too, though it does not list it."""
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


def test_a_zombie(ended: int) -> None:
    found = read(ended)
    assert (found.state, found.ppid) == ("zombie", os.getpid())
    assert (proc.descriptors(ended), proc.find_deleted_mapped_files(ended), proc.command_line(ended)) == ((), (), ())
    assert proc.find_id_users([ended])[0].state == "zombie"


def test_a_traced_process_names_its_tracer() -> None:
    with program(f"import ctypes; ctypes.CDLL(None).ptrace({PTRACE_TRACEME}, 0, 0, 0); {WAITS}") as process:
        assert read(process.pid).tracer == os.getpid()


def test_kernel_threads_are_told() -> None:
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
{WAITS}
"""


def test_a_tree_has_parents_before_children_and_nobody_else(waiting: subprocess.Popen[bytes]) -> None:
    with program(FAMILY.replace("print('ready', flush=True); ", "")) as process:
        tree = proc.read_tree(read(process.pid))
        parents = {found.pid: found.ppid for found in tree.processes}
        assert tree.root.pid == tree.pids[0] == process.pid
        assert len(tree.pids) == 3
        child, grandchild = tree.pids[1:]
        assert (parents[child], parents[grandchild]) == (process.pid, child)
        assert waiting.pid not in tree.pids
        assert proc.children(process.pid) == (child,)
        assert proc.ancestors(grandchild)[:3] == (child, process.pid, os.getpid())
        for pid in (grandchild, child):
            os.kill(pid, 9)


CHURN = """
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
    with program(CHURN) as process:
        root = read(process.pid)
        while time.monotonic() < began + 1 or (len(seen) <= 10 and time.monotonic() < began + 60):
            tree = proc.read_tree(root)
            seen.update(tree.pids)
            for pid in tree.pids:
                proc.descriptors(pid)
                proc.find_deleted_mapped_files(pid)
            proc.find_id_users([process.pid])
    assert len(seen) > 10, "the test saw none of the short-lived children"
    assert proc.descriptors(process.pid) == ()


def test_a_leader_is_told_as_pid_even_where_others_use_its_group() -> None:
    with program(f"pid = os.fork()\nif pid == 0: sys.stdin.read(); os._exit(0)\n{WAITS}") as process:
        (child,) = proc.children(process.pid)
        (owner,) = proc.find_id_users([process.pid])
        assert (owner.role, owner.pid, owner.number) == ("PID", process.pid, process.pid)
        os.kill(child, 9)


def test_a_group_outlives_its_leader() -> None:
    """The kernel does not give the number away, though no process has it any more."""
    code = "pid = os.fork()\nif pid: print(pid, flush=True); sys.exit()\nsys.stdin.read()"
    with program(code) as process:
        process.wait()
        assert proc.read_process(process.pid) is None
        (owner,) = proc.find_id_users([process.pid])
        assert owner.role == "group"
        assert read(owner.pid).pgid == process.pid
        os.kill(owner.pid, 9)


def test_nobody_owns_a_free_number() -> None:
    assert proc.find_id_users([free_pid()]) == ()


def test_ended_tasks(waiting: subprocess.Popen[bytes], ended: int) -> None:
    """Those that are not there, and zombies."""
    gone = free_pid()
    tasks = [(waiting.pid, waiting.pid), (waiting.pid, gone), (gone, gone), (ended, ended)]
    assert proc.find_ended_tasks(tasks) == (gone, gone, ended)
    assert proc.find_ended_tasks(tasks, os.getpid()) == (gone, gone, ended)


def test_open_files(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/log-\xff (deleted)"
    fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(fd, b"12345")
        found = descriptor(fd)
        assert os.fsencode(found.target) == name
        assert (found.size, found.pos, found.links, stat.S_IMODE(found.mode)) == (5, 5, 1, 0o640)
        assert found.is_append_only
        Path(os.fsdecode(name)).unlink()
        assert (descriptor(fd).target, descriptor(fd).links) == (found.target + " (deleted)", 0)
    finally:
        os.close(fd)


def test_only_writers_at_the_end_are_append_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND):
        fd = os.open(tmp_path / "file", flags)
        assert not descriptor(fd).is_append_only
        os.close(fd)


def test_descriptors_of_every_kind(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    left, right = socket.socketpair()
    event = os.eventfd(3, EFD_SEMAPHORE)
    poll = select.epoll()
    poll.register(left)
    memory = os.memfd_create("scratch")
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert descriptor(reading).target == descriptor(writing).target
        assert [descriptor(fd).flags & os.O_ACCMODE for fd in (reading, writing)] == [os.O_RDONLY, os.O_WRONLY]
        assert descriptor(left.fileno()).target == f"socket:[{os.fstat(left.fileno()).st_ino}]"
        assert "eventfd-semaphore: 1" in descriptor(event).info
        assert descriptor(poll.fileno()).target == "anon_inode:[eventpoll]"
        assert descriptor(memory).target == "/memfd:scratch (deleted)"
        assert stat.S_ISDIR(descriptor(directory).mode)
        numbers = [found.fd for found in proc.descriptors(os.getpid())]
        assert numbers == sorted(numbers)
    finally:
        left.close()
        right.close()
        poll.close()
        for fd in (reading, writing, event, memory, directory):
            os.close(fd)


def test_a_lock_shows(tmp_path: Path) -> None:
    with (tmp_path / "locked").open("w") as file:
        assert "\nlock:" not in descriptor(file.fileno()).info
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "\nlock:" in descriptor(file.fileno()).info


@pytest.fixture
def unanswering(tmp_path: Path) -> Iterator[int]:
    """A descriptor on a file system whose server is dead."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    place = os.fsencode(tmp_path)
    told = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"test", place, b"fuse", 0, told) != 0:
        os.close(server)
        pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    fd = os.open(tmp_path, os.O_PATH)
    os.close(server)
    yield fd
    os.close(fd)
    assert libc.umount2(place, 2) == 0


def test_a_file_system_that_does_not_answer(unanswering: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not connected"):
        os.fstat(unanswering)
    found = descriptor(unanswering)
    assert (found.target, found.mode, found.size, found.links) == (str(tmp_path), 0, 0, 0)


def test_mapped_files_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with path.open("r+b") as file:
        memory = [mmap.mmap(file.fileno(), mmap.PAGESIZE) for _ in range(2)]
    try:
        assert proc.find_deleted_mapped_files(os.getpid()) == ()
        (tmp_path / "other name").hardlink_to(path)
        path.unlink()
        assert proc.find_deleted_mapped_files(os.getpid()) == ((f"{path} (deleted)", 2 * mmap.PAGESIZE, 1),)
    finally:
        for mapping in memory:
            mapping.close()


def test_command_line_and_directory(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff"
    Path(os.fsdecode(place)).mkdir()
    words = [b"/bin/sh", b"-c", b"echo; read line", b"\xfe", b"", b"-", b""]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # just after exec the kernel shows no words yet
        assert [os.fsencode(word) for word in proc.command_line(process.pid)] == words[:-1]
        assert os.fsencode(proc.working_directory(process.pid)) == place
    finally:
        process.kill()
        process.communicate()


def test_facts_about_ourselves() -> None:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    assert sum(1 << number for number in proc.effective_capabilities()) == int(line.split()[1], 16)
    assert [len(part) for part in proc.boot_id().split("-")] == [8, 4, 4, 4, 12]


def test_waiting_until_they_are_gone(waiting: subprocess.Popen[bytes], ended: int) -> None:
    assert proc.wait_until_gone([free_pid()], 0) == ()
    assert proc.wait_until_gone([waiting.pid, ended], 0.03) == (waiting.pid, ended)
    reaper = threading.Timer(0.05, os.waitpid, (ended, 0))
    reaper.start()
    began = time.monotonic()
    assert proc.wait_until_gone([ended], 20) == ()
    assert time.monotonic() - began < 10
    reaper.join()


def test_of_a_command_line_without_end_the_begin_is_read() -> None:
    """A program can declare terabytes of its memory to be its arguments."""
    words = [sys.executable, "-c", f"import sys; {WAITS}", *("x" * 10_000 for _ in range(100))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        read = proc.command_line(process.pid)
        assert list(read[:4]) == words[:4]
        assert sum(len(word) + 1 for word in read) <= (128 << 10) + 1
        process.communicate()
