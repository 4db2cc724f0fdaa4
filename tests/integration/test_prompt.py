"""Programs restored at the prompt of a real shell get keys and signals as if the shell had started them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import PROGRAM, Crckpt
from prompts import PROMPT, SHELLS, Pane, Tmux, tmux_server
from stopped_trees import JOB
from trees import PROGRAMS, PYTHON, open_workdir, runs, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

WITHIN_S: Final = 60
RESTORE: Final = f"crckpt restore {JOB}"
STOPPED: Final = r"(?i)^\S*1\S*.*(stopped|suspended).*crckpt restore"


class Program:
    """tests/programs/job.py in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def command(self, *words: str) -> str:
        """The words to type."""
        return " ".join((PYTHON, f"{PROGRAMS}/job.py", str(self.directory), *words))

    @property
    def pid(self) -> int:
        """The PID that the program has in its own namespace."""
        return int((self.directory / "count").read_text().split()[0])

    @property
    def count(self) -> int:
        """The counter of the program."""
        return int((self.directory / "count").read_text().split()[1])

    @property
    def signals(self) -> list[str]:
        """The signals that the program caught, except SIGWINCH."""
        path = self.directory / "signals"
        names = path.read_text().split() if path.exists() else []
        return [name for name in names if name != "SIGWINCH"]

    def wait_started(self) -> int:
        """Wait until the program runs; return its PID."""
        wait_for((self.directory / "count").exists, WITHIN_S, "the program to start")
        return self.pid

    def wait_running(self, pane: Pane) -> None:
        """Wait until the program continues."""
        before = self.count
        try:
            wait_for(lambda: self.count > before + 1, WITHIN_S, "it to go on")
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen:\n{pane.screen}") from None


@pytest.fixture
def program() -> Iterator[Program]:
    """The program, which ends when its directory is removed."""
    with open_workdir() as directory:
        yield Program(directory)


@pytest.fixture
def tmux(crckpt: Crckpt, program: Program) -> Iterator[Tmux]:
    """A tmux server in which crckpt is the installed one."""
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    environment = crckpt.environment | {"PATH": path, "HOME": str(program.directory)}
    with tmux_server(program.directory, environment) as server:
        yield server


def wait_gone(pid: int) -> None:
    """Wait until the program has ended, and its PID is free."""
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), WITHIN_S, "the program to be gone")


def stop_at_prompt(crckpt: Crckpt, program: Program, pane: Pane, *words: str, line: str = "{}") -> int:
    """Start the program in this shell, checkpoint it and end it; return its PID. The shell keeps running."""
    pane.type(line.format(program.command(*words)))
    pid = program.wait_started()
    crckpt.run("dump", str(pid), JOB, "--stop")
    wait_gone(pid)
    # The program could not undo its settings: Enter is ^M there.
    pane.press("C-j")
    # Until that is undone, the Enter of the next command would be ^M, too.
    pane.type_raw("stty sane; echo mode''s undone")
    pane.wait("modes undone")
    pane.clear()
    return pid


def stop_without_shell(crckpt: Crckpt, program: Program, *words: str, has_terminal: bool) -> None:
    """Checkpoint the program as the leader of a session of its own, on a terminal of its own or on none, and end it."""
    # Not in a pane: tmux does not always reap at once.
    master, slave = os.openpty()
    try:
        output = slave if has_terminal else subprocess.DEVNULL
        argv = ["setsid", *(("--ctty",) if has_terminal else ()), *program.command(*words).split()]
        process = subprocess.Popen(argv, stdin=output, stdout=output, stderr=output)
        pid = program.wait_started()
        crckpt.run("dump", str(pid), JOB, "--stop")
        process.wait(WITHIN_S)
        wait_gone(pid)
    finally:
        os.close(master)
        os.close(slave)


def front(pane: Pane) -> psutil.Process:
    """The crckpt that this shell runs."""
    below = psutil.Process(pane.shell).children(recursive=True)
    (found,) = (each for each in below if each.cmdline()[1:3] == [str(PROGRAM), "restore"])
    return found


def is_stopped(process: psutil.Process) -> bool:
    """Whether a signal has stopped the process."""
    return process.status() == psutil.STATUS_STOPPED


def wait_stopped(process: psutil.Process) -> None:
    """Wait until a signal has stopped the process, which takes until its tracer has detached."""
    wait_for(lambda: is_stopped(process), WITHIN_S, f"{process} to stop")


def find_program(pane: Pane) -> psutil.Process:
    """The restored program, by its PID on the host."""
    below = psutil.Process(pane.shell).children(recursive=True)
    (found,) = (each for each in below if f"{PROGRAMS}/job.py" in each.cmdline())
    return found


def foreground_of(pane: Pane) -> int:
    """The process group in the foreground of the pane's terminal."""
    return int(Path(f"/proc/{pane.shell}/stat").read_text().rpartition(")")[2].split()[5])


def is_raw(pane: Pane) -> bool:
    """Whether the terminal passes on each key at once."""
    terminal = os.open(f"/proc/{pane.shell}/fd/0", os.O_RDONLY | os.O_NOCTTY)
    try:
        return not termios.tcgetattr(terminal)[3] & termios.ICANON
    finally:
        os.close(terminal)


def press_stop_and_go_on(program: Program, pane: Pane) -> None:
    """Check that ^Z shows the shell's prompt, and that `bg` and `fg` continue the program."""
    running = find_program(pane)
    pane.clear_screen()
    pane.press("C-z")
    pane.wait_prompt()
    wait_stopped(running)
    pane.type("jobs")
    pane.wait(STOPPED)
    pane.type("bg")
    program.wait_running(pane)
    assert not is_stopped(front(pane))
    pane.type("fg")
    program.wait_running(pane)


def wait_status(pane: Pane, shell: str, status: int) -> None:
    """Let the shell print the exit status of the last command."""
    pane.wait_prompt()
    pane.type(f"echo it was {'$status' if shell == 'fish' else '$?'}")
    assert pane.wait(r"^it was (\d+)")[1] == str(status)


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_that_started_a_job_controls_it_again_after_a_restore(
    crckpt: Crckpt, program: Program, tmux: Tmux, shell: str
) -> None:
    """The shell still runs: its session has the number that the program's session had."""
    pane = tmux.pane(shell)
    pid = stop_at_prompt(crckpt, program, pane)
    pane.type(RESTORE)
    program.wait_running(pane)
    assert program.pid == pid
    press_stop_and_go_on(program, pane)
    pane.resize(90, 20)
    pane.wait("^drawn 90 20")
    pane.press("C-\\")
    # fish does not tell the status of a job that `fg` has continued.
    wait_status(pane, shell, 0 if shell == "fish" else 128 + signal.SIGQUIT)
    assert not runs(pid)


@pytest.mark.parametrize("where", ["here", "new-pid-namespace"])
@pytest.mark.parametrize("has_terminal", [True, False], ids=["leader", "daemon"])
def test_keys_reach_a_program_that_has_its_own_session(
    crckpt: Crckpt, program: Program, tmux: Tmux, where: str, has_terminal: bool
) -> None:
    """The terminal sends signals for keys to crckpt, which passes them on to the program."""
    pane = tmux.pane("bash")
    stop_without_shell(crckpt, program, has_terminal=has_terminal)
    pane.type(RESTORE if where == "here" else f"{RESTORE} --new-pid-namespace")
    program.wait_running(pane)
    pid = find_program(pane).pid
    press_stop_and_go_on(program, pane)
    if has_terminal:
        pane.resize(90, 20)
        pane.wait("^drawn 90 20")
    else:
        pane.resize(90, 20)
        wait_for((program.directory / "signals").exists, WITHIN_S, "SIGWINCH to come")
    pane.press("C-c")
    wait_status(pane, "bash", 128 + signal.SIGINT)
    assert not runs(pid)


@pytest.mark.parametrize("has_terminal", [True, False], ids=["leader", "daemon"])
def test_signal_typed_or_sent_to_crckpt_arrives_once_at_the_program(
    crckpt: Crckpt, program: Program, tmux: Tmux, has_terminal: bool
) -> None:
    """The test types the key, and sends the signal to crckpt."""
    pane = tmux.pane("bash")
    stop_without_shell(crckpt, program, "--catch", has_terminal=has_terminal)
    _check_signals(program, pane)


def test_signals_typed_or_sent_to_a_shells_job_arrive_once(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    pane = tmux.pane("bash")
    stop_at_prompt(crckpt, program, pane, "--catch")
    _check_signals(program, pane)


def _check_signals(program: Program, pane: Pane) -> None:
    pane.type(RESTORE)
    program.wait_running(pane)
    expected: list[str] = []
    for key, name in (("C-c", "SIGINT"), ("C-\\", "SIGQUIT"), ("C-z", "SIGTSTP")):
        pane.press(key)
        expected.append(name)
        wait_for(lambda: program.signals == expected, WITHIN_S, f"{expected}; it got {program.signals}")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT):
        front(pane).send_signal(number)
        expected.append(number.name)
        wait_for(lambda: program.signals == expected, WITHIN_S, f"{expected}; it got {program.signals}")
    program.wait_running(pane)
    assert program.signals == expected


def test_signals_to_crckpt_stop_and_continue_the_program(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    """The test sends SIGTSTP and SIGCONT to crckpt."""
    pane = tmux.pane("bash")
    stop_at_prompt(crckpt, program, pane)
    pane.type(RESTORE)
    program.wait_running(pane)
    running, ours = find_program(pane), front(pane)
    ours.send_signal(signal.SIGTSTP)
    pane.wait_prompt()
    wait_stopped(running)
    ours.send_signal(signal.SIGCONT)
    program.wait_running(pane)
    ours.send_signal(signal.SIGINT)
    wait_for(lambda: not runs(running.pid), WITHIN_S, "the program to end")


def test_program_gets_the_size_of_the_terminal(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    """CRIU sets the size that the old terminal had."""
    stop_at_prompt(crckpt, program, tmux.pane("bash", columns=120, lines=40))
    pane = tmux.pane("bash", columns=90, lines=20)
    pane.type(RESTORE)
    pane.wait("^drawn 90 20")
    pane.press("C-c")
    pane.wait_prompt()
    assert pane.run("stty size") == "20 90"


def test_full_screen_program_redraws_its_screen_after_a_restore(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    """The terminal has the same size as before. The message of crckpt is not on the screen."""
    pane = tmux.pane("bash")
    stop_at_prompt(crckpt, program, pane, "--raw")
    pane.type(RESTORE)
    pane.wait(r"\Adrawn 120 40\n*\Z")


def test_crckpts_own_line_precedes_the_output(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    pane = tmux.pane("bash")
    stop_at_prompt(crckpt, program, pane, "--talk")
    pane.type(RESTORE)
    pane.wait(rf"\A{PROMPT} {RESTORE}\nrestored .* as PID \d+ in .*\n(drawn|says) ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_terminal_modes_are_undone_if_the_restored_program_is_killed(
    crckpt: Crckpt, program: Program, tmux: Tmux, number: signal.Signals
) -> None:
    """A killed program has not undone its raw mode, and dash does not undo it either."""
    pane = tmux.pane("dash")
    pid = stop_at_prompt(crckpt, program, pane, "--raw")
    pane.type("stty erase ^B")
    pane.type(RESTORE)
    program.wait_running(pane)
    os.kill(pid, number)
    pane.wait(rf"(Terminated|Killed)\n{PROMPT} ?\Z")
    settings = pane.run("stty -a")
    assert "erase = ^B" in settings
    assert not re.search(r"-(icanon|echo|isig|opost|icrnl)\b", settings)


def test_program_stopped_by_tostop_stops_crckpt_until_fg(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    """`stty tostop` makes the kernel stop the program; crckpt then stops itself, and both continue with `fg`."""
    pane = tmux.pane("bash")
    pid = stop_at_prompt(crckpt, program, pane, "--talk")
    pane.type(f"stty tostop; {RESTORE}")
    program.wait_running(pane)
    pane.press("C-z")
    pane.wait_prompt()
    pane.type("stty tostop; bg")
    pane.wait(r"(?s)\$? ?bg.*\n")
    # The program prints its counter, so the kernel stops it, and crckpt stops itself.
    wait_for(lambda: is_stopped(psutil.Process(pid)) and is_stopped(front(pane)), WITHIN_S, "the program to be stopped")
    pane.type("fg")
    program.wait_running(pane)
    pane.press("C-c")
    wait_status(pane, "bash", 128 + signal.SIGINT)


def test_program_stopped_by_a_background_read_stops_crckpt_until_fg(
    crckpt: Crckpt, program: Program, tmux: Tmux
) -> None:
    pane = tmux.pane("bash")
    pid = stop_at_prompt(crckpt, program, pane)
    pane.type(RESTORE)
    program.wait_running(pane)
    (program.directory / "read").touch()
    pane.type("one")
    pane.wait("^got one")
    pane.press("C-z")
    pane.wait_prompt()
    pane.type("bg")
    program.wait_running(pane)
    # The program reads, so the kernel stops it, and crckpt stops itself.
    (program.directory / "read").touch()
    wait_for(lambda: is_stopped(psutil.Process(pid)) and is_stopped(front(pane)), WITHIN_S, "the program to be stopped")
    pane.type("fg")
    wait_for(lambda: not is_stopped(psutil.Process(pid)), WITHIN_S, "the program to continue")
    pane.type("two")
    pane.wait("^got two")
    (program.directory / "read").touch()
    pane.press("C-d")
    wait_status(pane, "bash", 7)


def test_restore_in_the_background_leaves_the_terminal_to_the_shell(
    crckpt: Crckpt, program: Program, tmux: Tmux
) -> None:
    """With `&`, CRIU brings the program to the foreground, and sets the terminal as the program had it."""
    pane = tmux.pane("bash")
    stop_at_prompt(crckpt, program, pane, "--raw")
    pane.type(f"{RESTORE} &")
    program.wait_running(pane)
    pane.press("Enter")
    pane.wait_prompt()
    assert "crckpt restore" in pane.run("jobs")
    assert "-icanon" not in pane.run("stty -a")
    pane.type("fg")
    pane.wait("^crckpt restore")
    pid = find_program(pane).pid
    wait_for(lambda: foreground_of(pane) == pid, WITHIN_S, "it to have the terminal")
    wait_for(lambda: is_raw(pane), WITHIN_S, "the terminal to be as the program had it")


@pytest.mark.parametrize("around", ["{} | cat", "sh -c '{}; exit $?'", "env A=1 {}", "( {} )", "nice {}"])
def test_stop_key_stops_the_whole_pipeline_or_script_around_crckpt(
    crckpt: Crckpt, program: Program, tmux: Tmux, around: str
) -> None:
    """The shell waits until the whole of a pipeline, or of a script, is stopped."""
    pane = tmux.pane("bash")
    pid = stop_at_prompt(crckpt, program, pane)
    pane.type(around.format(RESTORE))
    program.wait_running(pane)
    pane.press("C-z")
    pane.wait_prompt()
    wait_stopped(psutil.Process(pid))
    pane.type("fg")
    program.wait_running(pane)
    pane.press("C-c")
    pane.wait_prompt()
    assert not runs(pid)


def test_script_that_restores_a_program_gets_the_terminal_back(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    """A script has no job control, so no shell would give it the terminal back."""
    pane = tmux.pane("bash")
    pid = stop_at_prompt(crckpt, program, pane)
    script = program.directory / "script"
    script.write_text(f"{RESTORE}\necho ended with $?\nread answer\necho got $answer\n")
    pane.type(f"sh {script}")
    program.wait_running(pane)
    os.kill(pid, signal.SIGTERM)
    pane.wait("^ended with 143")
    pane.type("yes")
    pane.wait("^got yes")


def test_interrupt_key_ends_a_shell_loop_around_the_restore(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    """The shell sees that crckpt has died of SIGINT."""
    pane = tmux.pane("bash")
    stop_at_prompt(crckpt, program, pane)
    pane.type(f"while true; do {RESTORE}; done")
    program.wait_running(pane)
    pane.press("C-c")
    wait_status(pane, "bash", 128 + signal.SIGINT)


@pytest.mark.parametrize("is_stopped_then", [False, True], ids=["running", "stopped"])
def test_program_gets_sighup_if_the_terminal_is_closed(
    crckpt: Crckpt, program: Program, tmux: Tmux, is_stopped_then: bool
) -> None:
    """The terminal hangs up, and the program gets SIGHUP."""
    tmux.pane("bash")
    pane = tmux.pane("bash")
    pid = stop_at_prompt(crckpt, program, pane)
    pane.type(RESTORE)
    program.wait_running(pane)
    ours = front(pane).pid
    if is_stopped_then:
        pane.press("C-z")
        pane.wait_prompt()
    pane.close()
    wait_for(lambda: not runs(pid) and not runs(ours), WITHIN_S, "both to end")


def test_pipeline_is_restored_with_a_pipe_to_crckpt(crckpt: Crckpt, program: Program, tmux: Tmux) -> None:
    """The program `python3 x.py | tee log` wrote to tee. After the restore, crckpt's output gets these lines."""
    pane = tmux.pane("bash")
    pid = stop_at_prompt(crckpt, program, pane, "--talk", line="{} | tee ~/log")
    pane.type(f"{RESTORE} | tee {program.directory}/log")
    program.wait_running(pane)
    wait_for(lambda: "says" in (program.directory / "log").read_text(), WITHIN_S, "its output")
    pane.press("C-z")
    pane.wait_prompt()
    wait_stopped(psutil.Process(pid))
    pane.type("fg")
    program.wait_running(pane)
    pane.press("C-c")
    pane.wait_prompt()
    assert not runs(pid)
