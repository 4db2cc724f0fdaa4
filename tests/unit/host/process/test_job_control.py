"""A restored program is a job of the shell that started crckpt: it stops, continues and ends as any job does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from checkout import TESTS
from target_processes import state, wait_for

from crckpt.host.process.job_control import Job

WITHIN_S: Final = 60
STOP: Final = b"\x1a"
JOB_SHELL: Final = str(TESTS / "programs/job_shell.py")


class Shell:
    """tests/programs/job_shell.py on a terminal of its own."""

    def __init__(self, program: str) -> None:
        self.master, slave = os.openpty()
        read_end, self._telling = os.pipe()
        self._said, saying = os.pipe()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, JOB_SHELL, program, str(read_end), str(saying)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=(read_end, saying),
        )
        for end in (slave, read_end, saying):
            os.close(end)
        self._lines = os.fdopen(self._said)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._gather, daemon=True)
        self._reader.start()
        self.child = 0

    def _gather(self) -> None:
        with suppress(OSError):
            while part := os.read(self.master, 4096):
                self._shown += part

    def wait(self, what: str) -> str:
        """The rest of the next line of the shell, which is of that kind."""
        word, _, rest = self._lines.readline().rstrip().partition(" ")
        assert word == what, bytes(self._shown)
        return rest

    def wait_shown(self, text: bytes) -> None:
        wait_for(lambda: text in self._shown, f"{text!r} on the terminal")

    def foreground(self) -> None:
        os.write(self._telling, b"fg\n")

    def close(self) -> None:
        # Hang up: the kernel sends SIGHUP to all in the foreground.
        with suppress(ProcessLookupError):
            if self.child:
                os.kill(self.child, signal.SIGKILL)
        os.close(self._telling)
        self.process.kill()
        self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)
        os.close(self.master)
        self._lines.close()


@contextmanager
def shell(program: str) -> Iterator[Shell]:
    found = Shell(program)
    try:
        found.child = int(found.wait("started"))
        yield found
    finally:
        found.close()


def goes_on_with_terminal(found: Shell) -> bool:
    """Whether the program runs after it got the terminal: earlier stops are lost when it is continued."""
    return os.tcgetpgrp(found.master) == found.child and state(found.child) in "RS"


def test_exit_status_of_a_foreground_restore_is_that_of_the_program() -> None:
    with shell("exit 7") as found:
        assert found.wait("exited") == "7"
    with shell("kill -TERM $$") as found:
        assert int(found.wait("exited")) in (-signal.SIGTERM, 256 - signal.SIGTERM)


def test_program_stopped_by_another_process_stops_its_job(tmp_path: Path) -> None:
    """The shell gets the terminal back, so that its user can continue the job."""
    goes_on = f"trap 'echo > {tmp_path}/continued' CONT; echo here; while :; do sleep 0.01; done"
    with shell(f"read line; {goes_on}") as found:
        # The program gets the terminal when it reads from it.
        os.write(found.master, b"\n")
        found.wait_shown(b"here")
        for _ in range(2):
            wait_for(lambda: goes_on_with_terminal(found), "the program to have the terminal")
            os.kill(found.child, signal.SIGSTOP)
            found.wait("stopped")
            assert not (tmp_path / "continued").exists()
            found.foreground()
            wait_for((tmp_path / "continued").exists, "the program to go on")
            (tmp_path / "continued").unlink()


def test_stopped_program_stops_its_job_and_continues_with_it() -> None:
    with shell("echo here; read line; echo got $line") as found:
        found.wait_shown(b"here")
        # The program's own process group has the terminal, so ^Z reaches only the program.
        wait_for(lambda: goes_on_with_terminal(found), "the program to have the terminal")
        os.write(found.master, STOP)
        found.wait("stopped")
        assert state(found.child) == "T"
        assert os.tcgetpgrp(found.master) == found.process.pid
        found.foreground()
        wait_for(lambda: os.tcgetpgrp(found.master) == found.child, "the program to have the terminal again")
        os.write(found.master, b"words\n")
        found.wait_shown(b"got words")
        assert found.wait("exited") == "0"


def test_program_waiting_for_its_new_terminal_continues() -> None:
    """The program gets the terminal after it has read in the background, before the kernel stops it for that."""
    with shell("echo here; read line; echo got $line") as found:
        found.wait_shown(b"here")
        wait_for(lambda: os.tcgetpgrp(found.master) == found.child, "the program to have the terminal")
        os.kill(found.child, signal.SIGTTIN)
        os.write(found.master, b"words\n")
        found.wait_shown(b"got words")
        assert found.wait("exited") == "0"


def test_program_that_ends_while_its_job_stops_is_reaped() -> None:
    """The kernel stops no job that no shell could continue."""
    code = """
import os
from crckpt.host.process import job_control
job_control._LOOK_S = 600
program = os.fork()
if program == 0:
    os.setpgid(0, 0)
    os.execv("/bin/sh", ["sh", "-c", "while :; do kill -STOP $$; done"])
print(program, flush=True)
print(os.waitstatus_to_exitcode(job_control.wait_for_job(job_control.Job(program, program, None))))
"""
    master, slave = os.openpty()
    job = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-c", code], stdin=slave, stdout=subprocess.PIPE, text=True
    )
    os.close(slave)
    try:
        assert job.stdout is not None
        program = int(job.stdout.readline())
        wait_for(lambda: (state(program), state(job.pid)) == ("T", "S"), "the job to have tried to stop")
        os.kill(program, signal.SIGKILL)
        out, _ = job.communicate(timeout=WITHIN_S)
        assert out == f"{-signal.SIGKILL}\n"
    finally:
        job.kill()
        job.communicate()
        os.close(master)


def test_stop_typed_before_crckpt_waits_for_the_program_stops_the_program() -> None:
    """crckpt would stop alone, and the shell would show a job as stopped that runs."""
    code = """
import os, signal
from crckpt.host.process import job_control
from crckpt.host.process.signals import defer_stop
program = os.fork()
if program == 0:
    os.setpgid(0, 0)
    os.execv("/bin/sleep", ["sleep", "60"])
os.setpgid(program, program)
defer_stop()
os.kill(os.getpid(), signal.SIGTSTP)
print(program, flush=True)
job_control.wait_for_job(job_control.Job(program, program, None))
"""
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert job.stdout is not None
        program = int(job.stdout.readline())
        wait_for(lambda: state(program) == "T", "the program to stop")
        os.kill(program, signal.SIGKILL)
    finally:
        job.kill()
        job.communicate()


def test_keys_are_not_sent_to_a_process_group_that_has_ended() -> None:
    """A program chooses its groups, and can end one so that others get its number."""
    program, stranger = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
    member = subprocess.Popen(["setsid", "sh", "-mc", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        assert member.stdout is not None
        group = int(member.stdout.readline())
        assert Job(program.pid, program.pid, None, foreground=stranger.pid).typing_group == program.pid
        assert Job(member.pid, member.pid, None, foreground=group).typing_group == group
        os.kill(group, signal.SIGKILL)
    finally:
        for process in (program, stranger, member):
            process.kill()
            process.wait()
        if member.stdout is not None:
            member.stdout.close()
