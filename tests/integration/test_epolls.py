"""Epolls are restored with every file that they watch, or refused before the tree is frozen."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import PROGRAM, Crckpt
from remote import Remote, remote
from stopped_trees import JOB
from trees import runs

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

WITHIN_S: Final = 60
REFUSED: Final = 24
LAST_PID: Final = "/proc/sys/kernel/ns_last_pid"
LOWEST_PID: Final = 2

_CHILD_WITH_LOWER_PID: Final = f"""
import os, select, signal
from pathlib import Path
poll = select.epoll()
end, other = os.pipe()
poll.register(end, select.EPOLLIN)
before = Path("{LAST_PID}").read_text()
Path("{LAST_PID}").write_text("{LOWEST_PID}")
child = os.fork()
if child == 0:
    CLOSE
    while True: signal.pause()
Path("{LAST_PID}").write_text(before)
answer = child
"""
_FILE_CLOSED_IN_CHILD: Final = _CHILD_WITH_LOWER_PID.replace("CLOSE", "os.close(end)")
_OTHER_FILE_IN_CHILD: Final = _CHILD_WITH_LOWER_PID.replace("CLOSE", "os.dup2(other, end)")
_FILE_WATCHED_TWICE: Final = """
import os, select
poll = select.epoll()
first, other = os.pipe()
again = os.dup(first)
poll.register(first, select.EPOLLIN); poll.register(again, select.EPOLLIN)
os.close(first)
"""
_FILE_OPEN_ONLY_IN_CHILD: Final = """
import os, select, signal
poll = select.epoll()
child = os.fork()
if child == 0:
    end, other = os.pipe()
    poll.register(end, select.EPOLLIN)
    while True: signal.pause()
answer = child
"""


@pytest.mark.parametrize(
    ("hold", "message"),
    [
        (_FILE_CLOSED_IN_CHILD, "a restore makes it in PID {answer}"),
        (_OTHER_FILE_IN_CHILD, "a restore makes it in PID {answer}"),
        (_FILE_OPEN_ONLY_IN_CHILD, "watches a descriptor that is closed there but open elsewhere"),
        (_FILE_WATCHED_TWICE, "watches a descriptor that is closed there but open elsewhere"),
    ],
    ids=["closed in the lowest", "another file in the lowest", "in a child only", "twice"],
)
def test_epoll_that_cannot_be_restored_is_refused_before_the_freeze(crckpt: Crckpt, hold: str, message: str) -> None:
    with remote() as program:
        answer = program.ask(f"answer = None\n{hold}")
        try:
            assert answer is None or runs(int(str(answer)))
            words = ("dump", str(program.pid), JOB)
            for output in (
                crckpt.run("doctor", str(program.pid), status=REFUSED).out,
                crckpt.run(*words, "--stop", "--dry-run", status=REFUSED).err,
                crckpt.run(*words, "--stop", status=REFUSED).err,
            ):
                assert message.format(answer=answer) in output
            assert program.ask("answer = 1") == 1
            if hold != _OTHER_FILE_IN_CHILD:  # a restored epoll of this kind watches the other file
                crckpt.run(*words, "--stop", "--rehearse", "--no-preflight", status=21)
                assert program.ask("answer = 2") == 2
        finally:
            if answer is not None:
                os.kill(int(str(answer)), signal.SIGKILL)


def test_epoll_inherited_by_a_child_with_a_lower_pid_is_restored(crckpt: Crckpt) -> None:
    with remote() as program:
        child = program.ask(_CHILD_WITH_LOWER_PID.replace("CLOSE", "pass"))
        assert int(str(child)) < program.pid
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        os.waitpid(int(str(child)), 0)
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("os.write(other, b'x'); answer = poll.poll(5) == [(end, select.EPOLLIN)]") is True
        os.kill(int(str(child)), signal.SIGKILL)


def test_epoll_on_a_pipe_to_the_outside_is_restored_without_it(crckpt: Crckpt) -> None:
    """crckpt replaces the pipe by /dev/null, which an epoll does not accept."""
    with watched_output(crckpt) as program:
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("answer = poll.poll(5) == [(end, select.EPOLLOUT)]") is True
        # A pipe holds less than this, so another process reads it.
        assert program.ask("answer = sum(os.write(end, bytes(4096)) for _ in range(1000))") == 4096 * 1000
        # The restored program can be dumped and restored again.
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        os.waitpid(program.pid, 0)
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("os.write(end, b'x'); answer = poll.poll(5) == [(end, select.EPOLLOUT)]") is True


def test_epoll_on_a_pipe_to_the_outside_is_restored_with_output_to_a_file(crckpt: Crckpt, tmp_path: Path) -> None:
    """The file gets every byte."""
    report = tmp_path / "report"
    with watched_output(crckpt) as program, report.open("wb") as output, (tmp_path / "err").open("wb") as err:
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            (str(PROGRAM), "restore", JOB), stdin=null, stdout=output, stderr=err, env=crckpt.environment
        )
        assert program.ask("answer = poll.poll(5) == [(end, select.EPOLLOUT)]") is True
        program.tell("for number in range(10_000): os.write(end, b'%d\\n' % number)\nos._exit(0)")
        assert process.wait(WITHIN_S) == 0, (tmp_path / "err").read_text()
        assert report.read_text().split()[-10_000:] == [str(number) for number in range(10_000)]


def test_epoll_on_a_pipe_to_the_outside_can_be_rehearsed(crckpt: Crckpt) -> None:
    with watched_output(crckpt, "--rehearse"):
        pass


def test_restore_of_an_epoll_on_a_terminal_needs_a_new_terminal(crckpt: Crckpt, tmp_path: Path) -> None:
    master, slave = os.openpty()
    with remote(slave) as program:
        program.ask(f"import os, select; poll = select.epoll(); end = {slave}; poll.register(end, select.EPOLLIN)")
        os.close(slave)
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        os.close(master)
        for tty in ("null", str(tmp_path / "report")):
            for more in ((), ("--dry-run",)):
                error = crckpt.run("restore", JOB, "--detach", "--tty", tty, *more, status=REFUSED).err
                assert "waits for its terminal with an epoll" in error
                assert "--tty new" in error
        crckpt.run("restore", JOB, "--detach", "--tty", "new")
        assert program.ask("answer = os.isatty(end) and poll.poll(0) == []") is True


@contextmanager
def watched_output(crckpt: Crckpt, *words: str) -> Iterator[Remote]:
    """A program whose epoll watches a pipe to a process outside the tree, dumped and ended."""
    reading, writing = os.pipe()
    try:
        with remote(writing) as program:
            os.close(writing)
            program.ask(
                f"import os, select; poll = select.epoll(); end = {writing}; poll.register(end, select.EPOLLOUT)"
            )
            crckpt.run("dump", str(program.pid), JOB, "--stop", *words)
            program.wait_gone()
            yield program
    finally:
        os.close(reading)
