"""Pipes with one end in the tree: their bytes are restored, and the program notices who has the other end."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import psutil
import pytest
from command import Crckpt
from remote import Remote, remote
from stopped_trees import JOB
from trees import PYTHON, open_workdir, runs, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

WITHIN_S: Final = 60
REFUSED: Final = 24
LARGE_BYTES: Final = 1 << 20
OTHER_ENDS: Final = ("gone", "outside", "in the tree")
Who = Literal["gone", "outside", "in the tree"]
_READ_STATEMENTS: Final = """
import fcntl, os, select
os.set_blocking(end, False)
polled = select.poll(); polled.register(end, select.POLLIN)
found = b""
ended = False
try:
    while more := os.read(end, 1 << 20):
        found += more
    ended = True
except BlockingIOError:
    pass
answer = len(found), found == bytes(i % 251 for i in range(len(found))), ended, fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)
"""
_WRITE_STATEMENTS: Final = """
import os, signal
hits = []
signal.signal(signal.SIGPIPE, lambda *_: hits.append(1))
try:
    os.write(end, b"hello")
    answer = "written", hits
except BrokenPipeError:
    answer = "broken", hits
"""
_COUNTING_PROGRAM: Final = """
import os, signal, sys, time
while not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.02)
with open(f"{sys.argv[1]}/count", "w") as count:
    count.write(str(len(sys.stdin.buffer.read())))
signal.pause()
"""


@pytest.mark.parametrize("who", OTHER_ENDS)
@pytest.mark.parametrize(("size", "stop"), [(0, True), (9, True), (9, False), (65_536, True), (LARGE_BYTES, True)])
def test_reader_of_a_restored_pipe_gets_every_byte(crckpt: Crckpt, who: Who, size: int, stop: bool) -> None:
    """The reader also gets the end of the file if no process in the tree can write."""
    with _pipe(crckpt, who, size, reads=True, stop=stop) as (program, output):
        assert ("is a pipe from a process outside the tree" in output) == (who == "outside")
        assert program.ask(_READ_STATEMENTS) == (
            size,
            True,
            who != "in the tree",
            LARGE_BYTES if size == LARGE_BYTES else 65_536,
        )
        if who == "in the tree":
            program.ask("os.write(other, b'more')")
            assert program.ask("answer = os.read(end, 100)") == b"more"


@pytest.mark.parametrize("who", OTHER_ENDS)
@pytest.mark.parametrize(("size", "stop"), [(0, True), (9, True), (9, False)])
def test_writer_of_a_restored_pipe_gets_sigpipe_only_without_a_reader(
    crckpt: Crckpt, who: Who, size: int, stop: bool
) -> None:
    """A writer whose reader is outside continues, and /dev/null gets its output."""
    with _pipe(crckpt, who, size, reads=False, stop=stop) as (program, output):
        assert ("is a pipe to a process outside the tree" in output) == (who == "outside")
        assert program.ask(_WRITE_STATEMENTS) == (("broken", [1]) if who == "gone" else ("written", []))
        if who == "in the tree":
            filled = bytes(i % 251 for i in range(size))
            assert program.ask("answer = os.read(other, 100)") == filled + b"hello"


@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "left-running"])
def test_reader_that_goes_just_before_the_freeze_is_noticed(crckpt: Crckpt, stop: bool) -> None:
    """The state at the first look differs from the state that is dumped."""
    with remote() as program:
        program.ask("import os; other, end = os.pipe()")
        # With an existing store, crckpt starts CRIU before it examines the tree.
        crckpt.run("dump", str(program.pid), JOB)
        words = ("dump", str(program.pid), JOB, *(("--stop",) if stop else ()))
        dump = crckpt.start(*words, CRCKPT_STOP_AT="hold.commit")
        wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, WITHIN_S, "crckpt to have looked")
        program.ask("os.close(other)")
        dump.send_signal(signal.SIGCONT)
        _, error = dump.communicate(timeout=WITHIN_S)
        assert dump.returncode == 0, error
        if not stop:
            os.kill(program.pid, signal.SIGKILL)
        program.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        assert program.ask(_WRITE_STATEMENTS) == ("broken", [1])


def test_pipe_end_in_flight_through_a_socket_is_restored(crckpt: Crckpt) -> None:
    """The end is in no descriptor table, but it is in the tree."""
    with remote() as program:
        program.ask(
            "import os, socket\n"
            "left, right = socket.socketpair()\n"
            "end, other = os.pipe()\n"
            "socket.send_fds(left, [b'x'], [other])\n"
            "os.write(other, b'before'); os.close(other)\n"
            "sending, receiving = os.pipe()\n"
            "socket.send_fds(left, [b'y'], [sending]); os.close(sending)"
        )
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        program.ask("other = socket.recv_fds(right, 1, 1)[1][0]; os.write(other, b' and after'); os.close(other)")
        assert program.ask("answer = os.read(end, 100), os.read(end, 100)") == (b"before and after", b"")
        program.ask("sending = socket.recv_fds(right, 1, 1)[1][0]; os.write(receiving, b'it')")
        assert program.ask("answer = os.read(sending, 100)") == b"it"


@pytest.mark.parametrize("others", ["", "os.close(first)", "os.close(last)", "os.close(first); os.close(last)"])
def test_pipe_end_open_for_reading_and_writing_is_restored(crckpt: Crckpt, others: str) -> None:
    """`exec 3<>/proc/self/fd/0` opens such an end."""
    with remote() as program:
        program.ask(
            "import fcntl, os\n"
            "first, last = os.pipe()\n"
            "fcntl.fcntl(first, fcntl.F_SETPIPE_SZ, 1 << 18)\n"
            "os.write(last, bytes(200_000))\n"
            "both = os.open(f'/proc/self/fd/{first}', os.O_RDWR | os.O_NONBLOCK)\n"
            f"{others}"
        )
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("os.write(both, b'more'); answer = os.read(both, 1 << 20)") == bytes(200_000) + b"more"
        assert program.ask("answer = fcntl.fcntl(both, fcntl.F_GETPIPE_SZ)") == 1 << 18
        assert program.ask("answer = fcntl.fcntl(both, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_NONBLOCK)") == (
            os.O_RDWR | os.O_NONBLOCK
        )
        if "first" not in others:
            assert program.ask("os.write(both, b'to first'); answer = os.read(first, 100)") == b"to first"
        if "last" not in others:
            assert program.ask("os.write(last, b'of last'); answer = os.read(both, 100)") == b"of last"


def test_pipe_end_open_for_reading_and_writing_can_be_rehearsed(crckpt: Crckpt) -> None:
    with remote() as program:
        program.ask("import os; first, last = os.pipe(); both = os.open(f'/proc/self/fd/{first}', os.O_RDWR)")
        crckpt.run("dump", str(program.pid), JOB)
        crckpt.run("rehearse", JOB)


def test_rest_of_a_pipeline_is_restored_after_its_first_program_has_ended(crckpt: Crckpt) -> None:
    """The first program has ended after its last line. The second one counts every line."""
    with open_workdir() as workdir:
        reading, writing = os.pipe()
        null = subprocess.DEVNULL
        with subprocess.Popen(["seq", "10000"], stdin=null, stdout=writing, stderr=null) as first:
            os.close(writing)
            second = subprocess.Popen(
                [PYTHON, "-c", _COUNTING_PROGRAM, str(workdir)],
                stdin=reading,
                stdout=null,
                stderr=null,
                start_new_session=True,
            )
            os.close(reading)
            first.wait(WITHIN_S)
        try:
            crckpt.run("dump", str(second.pid), JOB, "--stop")
            second.wait(WITHIN_S)
            crckpt.run("restore", JOB, "--detach")
            (workdir / "go").touch()
            count = workdir / "count"
            wait_for(lambda: count.exists() and count.read_text() != "", WITHIN_S, "it to count")
            assert int(count.read_text()) == sum(len(f"{number}\n") for number in range(1, 10_001))
        finally:
            _end(second)


def test_flags_and_owner_of_a_pipe_end_are_restored(crckpt: Crckpt) -> None:
    """The program gets back O_NONBLOCK, O_ASYNC, the owner and the signal."""
    with remote() as program:
        program.ask(
            "import fcntl, os, signal\n"
            "hits = []\n"
            "signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))\n"
            "end, other = os.pipe()\n"
            "fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGUSR1)\n"
            "fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)"
        )
        flags = program.ask("answer = fcntl.fcntl(end, fcntl.F_GETFL), fcntl.fcntl(other, fcntl.F_GETFL)")
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        after = program.ask("answer = fcntl.fcntl(end, fcntl.F_GETFL), fcntl.fcntl(other, fcntl.F_GETFL)")
        assert after == flags
        assert program.ask("hits.clear(); os.write(other, b'x'); answer = hits") == [1]


@pytest.mark.parametrize("who", OTHER_ENDS)
def test_restored_named_pipe_has_its_unread_bytes(crckpt: Crckpt, who: Who) -> None:
    """The bytes are kept whoever else has the pipe open."""
    with remote() as program:
        path = program.workdir / "fifo"
        os.mkfifo(path)
        program.ask(
            f"import os; end = os.open({str(path)!r}, os.O_RDONLY | os.O_NONBLOCK)\n"
            f"other = os.open({str(path)!r}, os.O_WRONLY); os.write(other, b'forty-two')"
        )
        ours = os.open(path, os.O_WRONLY) if who == "outside" else -1
        if who != "in the tree":
            program.ask("os.close(other)")
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        if ours >= 0:
            os.close(ours)
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("answer = os.read(end, 100)") == b"forty-two"
        if who == "in the tree":
            program.ask("os.write(other, b'more')")
            assert program.ask("answer = os.read(end, 100)") == b"more"
        else:
            assert program.ask("answer = os.read(end, 100)") == b""


@pytest.mark.parametrize("who", OTHER_ENDS)
def test_writer_of_a_named_pipe_gets_sigpipe_only_without_a_reader(crckpt: Crckpt, who: Who) -> None:
    """A remaining reader outside gets what is written after the restore."""
    with remote() as program:
        path = program.workdir / "fifo"
        os.mkfifo(path)
        program.ask(
            f"import os; other = os.open({str(path)!r}, os.O_RDONLY | os.O_NONBLOCK)\n"
            f"end = os.open({str(path)!r}, os.O_WRONLY)"
        )
        ours = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if who == "outside" else -1
        if who != "in the tree":
            program.ask("os.close(other)")
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        assert program.ask(_WRITE_STATEMENTS) == (("broken", [1]) if who == "gone" else ("written", []))
        if ours >= 0:
            assert os.read(ours, 100) == b"hello"
            os.close(ours)


@pytest.mark.parametrize("kind", ["pipe", "named pipe"])
def test_packet_pipes_are_refused_before_the_tree_is_ended(crckpt: Crckpt, kind: str) -> None:
    """Without this check, the dump of a named pipe would succeed, and its restore would fail."""
    with remote() as program:
        ends = "os.pipe()" if kind == "pipe" else "2 * (os.open(workdir / 'fifo', os.O_RDWR),)"
        program.ask(
            "import fcntl, os\n"
            "os.mkfifo(workdir / 'fifo')\n"
            f"end, other = {ends}\n"
            "fcntl.fcntl(other, fcntl.F_SETFL, os.O_DIRECT)\n"
            "os.write(other, b'one'); os.write(other, b'two')"
        )
        result = crckpt.run("dump", str(program.pid), JOB, "--stop", status=REFUSED)
        assert "the tree has a pipe in packet mode" in result.err
        assert program.ask("answer = os.read(end, 100), os.read(end, 100)") == (b"one", b"two")


@pytest.mark.parametrize("kind", ["pipes", "named pipes"])
def test_dump_of_too_many_pipes_is_refused(crckpt: Crckpt, kind: str) -> None:
    """1,024 pipes of a kind are restored; one more is refused before the freeze."""
    with remote() as program:
        make = "os.pipe()" if kind == "pipes" else "fifo(number)"
        program.ask(
            "import os, resource\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
            "def fifo(number):\n"
            "    os.mkfifo(path := f'{workdir}/fifo{number}')\n"
            "    end = os.open(path, os.O_RDWR)\n"
            "    return end, end\n"
            f"pairs = [{make} for number in range(1024)]\n"
            "for pair in pairs: os.write(pair[1], b'%d' % pair[0])"
        )
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("answer = all(int(os.read(pair[0], 100)) == pair[0] for pair in pairs)") is True
        program.ask(f"number = 1024; pairs.append({make})")
        result = crckpt.run("dump", str(program.pid), JOB, status=REFUSED)
        assert f"the tree reads 1025 {kind}, and CRIU saves at most 1024" in result.err
        unchecked = crckpt.run("dump", str(program.pid), JOB, "--no-preflight", status=21)
        assert "CRIU saves at most 1024" in unchecked.err


@contextmanager
def _pipe(crckpt: Crckpt, who: Who, size: int, *, reads: bool, stop: bool) -> Iterator[tuple[Remote, str]]:
    """A restored program with one end of a pipe of so many bytes, and the output of its dump.

    `who` has the other end.
    """
    reading, writing = os.pipe()
    with remote(reading, writing) as program:
        program.ask(f"import fcntl, os; fcntl.fcntl({writing}, fcntl.F_SETPIPE_SZ, {max(size, 65_536)})")
        program.ask(f"os.write({writing}, bytes(i % 251 for i in range({size}))) if {size} else 0")
        end, other = (reading, writing) if reads else (writing, reading)
        program.ask(f"end, other = {end}, {other}")
        if who != "in the tree":
            program.ask("os.close(other)")
        # The tests' own ends: in between, they keep the pipe in any case.
        os.close(end)
        if who != "outside":
            os.close(other)
        output = crckpt.run("dump", str(program.pid), JOB, *(("--stop",) if stop else ())).out
        if not stop:
            os.kill(program.pid, signal.SIGKILL)
        program.wait_gone()
        if who == "outside":
            os.close(other)
        crckpt.run("restore", JOB, "--detach")
        yield program, output


def _end(process: subprocess.Popen[bytes]) -> None:
    if runs(process.pid):
        os.kill(process.pid, signal.SIGKILL)
    process.wait(WITHIN_S)
    wait_for(lambda: not runs(process.pid), WITHIN_S, "it to end")
