"""A program that was started from a shell on a terminal is restored on another one, only in the foreground."""

import os
import shutil
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import psutil
import pytest
from command import PROGRAM, Crckpt
from dump_moments import find_below
from stopped_trees import JOB, ObstructedCriu, program, staging
from trees import NOBODY, PROGRAMS, PYTHON, Part, open_workdir, runs, started, statuses, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 23
REFUSED: Final = 24
INTERRUPTED: Final = 130
WITHIN_S: Final = 60
INTERRUPT: Final = b"\x03"
STOP: Final = b"\x1a"
ERASE: Final = "\x1b[2K"


class Terminal:
    """A terminal with a program that leads its session. The output of the terminal is collected."""

    def __init__(self, *argv: str, environment: dict[str, str] | None = None) -> None:
        self._master, slave = os.openpty()
        # setsid makes the terminal the controlling one, so that ^C is a signal.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *argv], stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
        )
        os.close(slave)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._gather)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up: every process on the terminal gets SIGHUP."""
        self.process.kill()
        self.process.wait()
        self._reader.join(WITHIN_S)
        os.close(self._master)

    @property
    def shown(self) -> str:
        """All text that the terminal has shown."""
        return self._shown.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self._master, keys)

    def _gather(self) -> None:
        with suppress(OSError):  # nobody has it open any more
            while shown := os.read(self._master, 4096):
                self._shown += shown


@pytest.fixture
def workdir() -> Iterator[Path]:
    """The directory for the program's reports; the program ends when the directory is removed."""
    with open_workdir() as workdir:
        yield workdir


@pytest.fixture(params=["{}", "bash -c '{}; true'"], ids=["job", "child-of-job"])
def stopped_job(request: pytest.FixtureRequest, crckpt: Crckpt, workdir: Path) -> int:
    """The PID of a program that was a shell's job on a terminal, or a job's child, and was checkpointed and ended.

    A job leads a process group of its own. A child takes part in that of crckpt, where ^C reaches them both.
    """
    with _job(workdir, request.param) as pid:
        crckpt.run("dump", str(pid), JOB, "--stop")
    return pid


def test_dump_explains_why_it_uses_the_terminal_option(crckpt: Crckpt, workdir: Path) -> None:
    """The session's leader is the shell, outside the tree."""
    with _job(workdir) as pid:
        shell = psutil.Process(pid).ppid()
        result = crckpt.run("dump", str(pid), JOB, "-v")
        assert f"--shell-job: its session leader {shell} is outside the tree" in result.out
        count = _read_status(workdir).counter
        wait_for(lambda: _read_status(workdir).counter > count, WITHIN_S, "the job to go on")


@pytest.mark.parametrize("stopped_job", ["{}"], indirect=True, ids=["job"])
def test_restore_without_a_terminal_is_refused(crckpt: Crckpt, stopped_job: int) -> None:
    """The restore is refused with and without --detach. The message says what is missing."""
    for words in (("--detach",), ()):
        result = crckpt.run("restore", JOB, *words, status=REFUSED)
        assert "the tree was started from a terminal and needs one" in result.err
        assert "restore it from a terminal, without --detach" in result.err


def test_program_of_another_user_gets_our_terminal_only_with_an_option(crckpt: Crckpt, workdir: Path) -> None:
    """The program could type commands for our shell (TIOCSTI)."""
    shutil.copytree(PROGRAMS, workdir / "programs")
    os.chown(workdir, NOBODY, NOBODY)
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(workdir), "PS1": "$ "}
    as_nobody = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
    with Terminal("bash", "--norc", "-i", environment=environment) as terminal:
        terminal.type(f"{as_nobody} {PYTHON} {workdir}/programs/talker.py {workdir} --listen\n".encode())
        wait_for(lambda: _read_status(workdir).counter > 5, WITHIN_S, "the program to start")
        crckpt.run("dump", str(_read_status(workdir).pid), JOB, "--stop")
    words = (str(PROGRAM), "restore", JOB)
    with Terminal(*words, environment=crckpt.environment) as terminal:
        assert terminal.process.wait(WITHIN_S) == REFUSED
        wait_for(lambda: "this terminal belongs to user 0" in terminal.shown, WITHIN_S, "the reason")
    before = _read_status(workdir).counter
    with Terminal(*words, "--allow-weaker", environment=crckpt.environment) as terminal:
        wait_for(lambda: _read_status(workdir).counter > before + 3, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        os.kill(_read_status(workdir).pid, signal.SIGTERM)
        assert terminal.process.wait(WITHIN_S) == -signal.SIGTERM


def test_restored_program_gets_input_and_the_interrupt_key_and_crckpt_ends_with_it(
    crckpt: Crckpt, stopped_job: int, workdir: Path
) -> None:
    """Input reaches the program, ^C arrives once, and crckpt ends with the program."""
    before = _read_status(workdir).counter
    with Terminal(str(PROGRAM), "restore", JOB, environment=crckpt.environment) as terminal:
        wait_for(lambda: _read_status(workdir).counter > before + 3, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        assert ERASE not in terminal.shown.partition("says")[2], "the program's first words were erased"
        assert psutil.Process(stopped_job).ppid() == terminal.process.pid
        terminal.type(b"hello there\n")
        wait_for(lambda: _read_status(workdir).facts["heard"] == ["hello", "there"], WITHIN_S, "the words to arrive")
        terminal.type(INTERRUPT)
        wait_for(lambda: _read_status(workdir).facts["interrupts"] == 1, WITHIN_S, "the interrupt to arrive")
        terminal.type(b"again\n")
        wait_for(lambda: _read_status(workdir).facts["heard"] == ["hello", "there", "again"], WITHIN_S, "it to read on")
        assert _read_status(workdir).facts["interrupts"] == 1
        os.kill(stopped_job, signal.SIGTERM)
        assert terminal.process.wait(WITHIN_S) == -signal.SIGTERM


@pytest.mark.parametrize("line", ["{}", "bash -c '{}; sleep 600'"], ids=["job", "child-of-job"])
def test_program_is_restored_while_its_old_shell_still_runs(crckpt: Crckpt, workdir: Path, line: str) -> None:
    """The shell still has the session, and in the second case the group, that the program was in."""
    with _job(workdir, line) as pid:
        shell = psutil.Process(pid).parent()
        crckpt.run("dump", str(pid), JOB, "--stop")
        before = _read_status(workdir).counter
        with Terminal(str(PROGRAM), "restore", JOB, environment=crckpt.environment) as terminal:
            wait_for(
                lambda: _read_status(workdir).counter > before + 3, WITHIN_S, f"it to go on; shown: {terminal.shown}"
            )
            assert shell is not None
            assert shell.is_running()


@pytest.mark.parametrize("stopped_job", ["{}", "bash -c '{}; true'"], indirect=True, ids=["job", "child-of-job"])
@pytest.mark.parametrize("words", [b"fg\n", b"bg; fg\n"], ids=["fg", "bg-fg"])
def test_stop_gives_the_shell_the_terminal_until_fg(
    crckpt: Crckpt, stopped_job: int, workdir: Path, words: bytes
) -> None:
    """^Z stops the program and crckpt with it. `fg` gives the program the terminal, also after `bg`."""
    before = _read_status(workdir).counter
    environment = crckpt.environment | {"PS1": "$ ", "LANG": "C.UTF-8"}
    with Terminal("bash", "--norc", "-i", environment=environment) as terminal:
        terminal.type(f"{PROGRAM} restore {JOB}\n".encode())
        wait_for(lambda: _read_status(workdir).counter > before, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        terminal.type(STOP)
        wait_for(lambda: "Stopped" in terminal.shown, WITHIN_S, f"the shell to say so; shown: {terminal.shown}")
        assert psutil.Process(stopped_job).status() == psutil.STATUS_STOPPED
        stopped_at = _read_status(workdir).counter
        # Both commands are on one line: a program in the background would read a second line, and be stopped.
        terminal.type(words)
        wait_for(lambda: _read_status(workdir).counter > stopped_at, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        terminal.type(b"hello\n")
        wait_for(
            lambda: _read_status(workdir).facts["heard"] == ["hello"], WITHIN_S, f"the word; shown: {terminal.shown}"
        )
        terminal.type(INTERRUPT)
        wait_for(lambda: _read_status(workdir).facts["interrupts"] == 1, WITHIN_S, "the interrupt to arrive")
        os.kill(stopped_job, signal.SIGTERM)
        wait_for(lambda: not runs(stopped_job), WITHIN_S, "the program to be gone")


@pytest.mark.parametrize("stopped_job", ["{}"], indirect=True, ids=["job"])
def test_stop_key_is_ignored_if_no_shell_could_continue_crckpt(crckpt: Crckpt, stopped_job: int, workdir: Path) -> None:
    """With `ssh -t`, crckpt is the only program on its terminal: no shell could continue it."""
    before = _read_status(workdir).counter
    with Terminal(str(PROGRAM), "restore", JOB, environment=crckpt.environment) as terminal:
        wait_for(lambda: _read_status(workdir).counter > before, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        terminal.type(STOP)
        wait_for(lambda: "^Z" in terminal.shown, WITHIN_S, f"the key to arrive; shown: {terminal.shown}")
        at = _read_status(workdir).counter
        wait_for(lambda: _read_status(workdir).counter > at + 1, WITHIN_S, f"it to go on; shown: {terminal.shown}")


@pytest.mark.parametrize("stopped_job", ["{}"], indirect=True, ids=["job"])
def test_interrupt_during_the_restore_leaves_nothing(
    crckpt: Crckpt, stopped_job: int, workdir: Path, tmp_path: Path
) -> None:
    """CRIU is on the terminal, too, where ^C ends it. A second restore works."""
    before = _read_status(workdir).counter
    obstructed = ObstructedCriu(tmp_path)
    argv = (str(PROGRAM), "restore", JOB, "--criu", str(obstructed.path))
    with obstructed.waits_at_first() as obstacle, Terminal(*argv, environment=crckpt.environment) as terminal:
        obstacle.wait_reached()
        terminal.type(INTERRUPT)
        obstacle.let_go()
        assert terminal.process.wait(WITHIN_S) in (FAILED, INTERRUPTED)
        wait_for(lambda: "nothing is left behind" in terminal.shown, WITHIN_S, "crckpt to say so")
    wait_for(lambda: not runs(stopped_job), WITHIN_S, "the program to be gone")
    assert staging(crckpt) == ()
    with Terminal(*argv, environment=crckpt.environment):
        wait_for(lambda: _read_status(workdir).counter > before, WITHIN_S, "it to go on")


@pytest.mark.parametrize("stopped_job", ["{}"], indirect=True, ids=["job"])
def test_stop_during_the_restore_gives_the_shell_the_terminal(
    crckpt: Crckpt, stopped_job: int, workdir: Path, tmp_path: Path
) -> None:
    """CRIU is on the terminal, too, where ^Z stops it. `fg` continues crckpt and CRIU."""
    before = _read_status(workdir).counter
    obstructed = ObstructedCriu(tmp_path)
    environment = crckpt.environment | {"PS1": "$ ", "LANG": "C.UTF-8"}
    shell = Terminal("bash", "--norc", "-i", environment=environment)
    with obstructed.waits_at_first() as obstacle, shell as terminal:
        terminal.type(f"{PROGRAM} restore {JOB} --criu {obstructed.path}\n".encode())
        obstacle.wait_reached()
        terminal.type(STOP)
        wait_for(lambda: "Stopped" in terminal.shown, WITHIN_S, f"the shell to say so; shown: {terminal.shown}")
        terminal.type(b"fg\n")
        obstacle.let_go()
        wait_for(lambda: _read_status(workdir).counter > before, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        os.kill(stopped_job, signal.SIGTERM)
        wait_for(lambda: not runs(stopped_job), WITHIN_S, "the program to be gone")


@pytest.mark.parametrize("stopped_job", ["{}"], indirect=True, ids=["job"])
def test_program_in_a_pid_namespace_has_the_terminal(crckpt: Crckpt, stopped_job: int, workdir: Path) -> None:
    """The process has another PID on the host, but the same terminal."""
    before = _read_status(workdir).counter
    argv = (str(PROGRAM), "restore", JOB, "--new-pid-namespace")
    with Terminal(*argv, environment=crckpt.environment) as terminal:
        wait_for(lambda: _read_status(workdir).counter > before + 3, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        terminal.type(b"hello\n")
        wait_for(lambda: _read_status(workdir).facts["heard"] == ["hello"], WITHIN_S, "the word to arrive")
        terminal.type(INTERRUPT)
        wait_for(lambda: _read_status(workdir).facts["interrupts"] == 1, WITHIN_S, "the interrupt to arrive")
        assert not runs(stopped_job)


@pytest.mark.parametrize("stopped_job", ["bash -c '{}; true'"], indirect=True, ids=["child-of-job"])
def test_child_of_a_job_is_restored_only_without_a_new_pid_namespace(
    crckpt: Crckpt, stopped_job: int, workdir: Path
) -> None:
    """CRIU would fail: the process group of the command that restores has no number in a new namespace."""
    before = _read_status(workdir).counter
    argv = (str(PROGRAM), "restore", JOB)
    with Terminal(*argv, "--new-pid-namespace", environment=crckpt.environment) as terminal:
        assert terminal.process.wait(WITHIN_S) == REFUSED
        wait_for(lambda: "restore it without --new-pid-namespace" in terminal.shown, WITHIN_S, "the remedy")
    with Terminal(*argv, environment=crckpt.environment) as terminal:
        wait_for(lambda: _read_status(workdir).counter > before, WITHIN_S, f"it to go on; shown: {terminal.shown}")


@pytest.mark.parametrize("stopped_job", ["{}"], indirect=True, ids=["job"])
@pytest.mark.parametrize("words", [b"fg\n", b"bg; fg\n"], ids=["fg", "bg-fg"])
@pytest.mark.parametrize("how", ["typed", "by itself"])
def test_stop_in_a_pid_namespace_gives_the_shell_the_terminal(
    crckpt: Crckpt, stopped_job: int, workdir: Path, words: bytes, how: str
) -> None:
    """The stop comes from ^Z, or from a SIGSTOP that a program sends to itself after catching ^Z."""
    before = _read_status(workdir).counter
    environment = crckpt.environment | {"PS1": "$ ", "LANG": "C.UTF-8"}
    with Terminal("bash", "--norc", "-i", environment=environment) as terminal:
        terminal.type(f"{PROGRAM} restore {JOB} --new-pid-namespace\n".encode())
        wait_for(lambda: _read_status(workdir).counter > before + 3, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        (program,) = find_below(terminal.process.pid, "talker.py")
        assert program.pid != stopped_job
        if how == "typed":
            terminal.type(STOP)
        else:
            program.send_signal(signal.SIGSTOP)
        wait_for(lambda: "Stopped" in terminal.shown, WITHIN_S, f"the shell to say so; shown: {terminal.shown}")
        assert program.status() == psutil.STATUS_STOPPED
        at = _read_status(workdir).counter
        terminal.type(words)
        wait_for(lambda: _read_status(workdir).counter > at, WITHIN_S, f"it to go on; shown: {terminal.shown}")
        terminal.type(b"hello\n")
        wait_for(
            lambda: _read_status(workdir).facts["heard"] == ["hello"], WITHIN_S, f"the word; shown: {terminal.shown}"
        )
        terminal.type(INTERRUPT)
        wait_for(lambda: _read_status(workdir).facts["interrupts"] == 1, WITHIN_S, "the interrupt to arrive")
        program.terminate()
        wait_for(lambda: not runs(program.pid), WITHIN_S, "the program to be gone")


@pytest.mark.parametrize("stopped_job", ["{}"], indirect=True, ids=["job"])
@pytest.mark.parametrize("then", [(), ("--new-pid-namespace",)], ids=["here", "new-pid-namespace"])
def test_job_in_a_pid_namespace_can_be_dumped_and_restored_again(
    crckpt: Crckpt, stopped_job: int, workdir: Path, then: tuple[str, ...]
) -> None:
    """The shell leads the session of the program from outside the namespace."""
    for words in ("--new-pid-namespace",), then:
        before = _read_status(workdir).counter
        argv = (str(PROGRAM), "restore", JOB, *words)
        with Terminal(*argv, environment=crckpt.environment) as terminal:
            wait_for(lambda at=before: _read_status(workdir).counter > at + 2, WITHIN_S, "it to go on")  # type: ignore[misc]
            crckpt.run("dump", JOB, "--incremental")
            at = _read_status(workdir).counter
            wait_for(lambda at=at: _read_status(workdir).counter > at + 2, WITHIN_S, "it to keep running")  # type: ignore[misc]
            terminal.type(INTERRUPT)
            wait_for(lambda: _read_status(workdir).facts["interrupts"] != 0, WITHIN_S, "the interrupt to arrive")
            crckpt.run("dump", JOB, "--stop")
            terminal.process.wait(WITHIN_S)


@contextmanager
def _job(workdir: Path, line: str = "{}") -> Iterator[int]:
    """The PID of a program that a shell runs in the foreground of a terminal; `line` is the typed command around it."""
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(workdir), "PS1": "$ "}
    with Terminal("bash", "--norc", "-i", environment=environment) as terminal:
        terminal.type(line.format(f"{PYTHON} {PROGRAMS}/talker.py {workdir} --listen").encode() + b"\n")
        wait_for(lambda: _read_status(workdir).counter > 5, WITHIN_S, "the program to start")
        yield _read_status(workdir).pid


def _read_status(workdir: Path) -> Part:
    return statuses(workdir).get("", Part(0, 0, True, "", False, False, {}))


@pytest.mark.parametrize("becomes_of_it", ["stopped", "gone"])
def test_dump_with_stop_finishes_although_its_terminal_is_blocked(crckpt: Crckpt, becomes_of_it: str) -> None:
    """The terminal is stopped by ^S, or closed, while the tree is held. The tree ends once its checkpoint is safe."""
    master, slave = os.openpty()
    with started(program("counter")) as tree:
        argv = [str(PROGRAM), "dump", str(tree.pid), JOB, "--stop"]
        environment = crckpt.environment | {"CRCKPT_STOP_AT": "pack.create"}
        null = subprocess.DEVNULL
        process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=slave, env=environment, start_new_session=True)
        try:
            stopped = psutil.STATUS_STOPPED
            wait_for(lambda: psutil.Process(process.pid).status() == stopped, WITHIN_S, "it to begin to store")
            assert os.read(master, 4096), "no bar was drawn"
            if becomes_of_it == "gone":
                os.close(slave)
                os.close(master)
            else:
                termios.tcflow(slave, termios.TCOOFF)
            process.send_signal(signal.SIGCONT)
            wait_for(lambda: not runs(tree.pid), WITHIN_S, "the tree to end")
            assert len(crckpt.run("list", "--json").document["result"]["checkpoints"]) == 1
            if becomes_of_it == "stopped":
                termios.tcflow(slave, termios.TCOON)
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()
            process.wait()
            if becomes_of_it == "stopped":
                os.close(slave)
                os.close(master)
