"""A program started at a terminal is restored without it: on a new terminal, on none, or with output to a file."""

import json
import os
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from command import PROGRAM, Crckpt
from stopped_trees import ObstructedCriu
from tmux import Tmux
from trees import NOBODY, PROGRAMS, PYTHON, Part, open_workdir, runs, statuses, wait_for

from crckpt.cli.completion.complete import complete

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

# `crckpt attach` finds the terminals of all stores, and logs are in one directory: those of other tests, too. Workers
# have PID namespaces of their own, in which PIDs repeat.
JOB: Final = f"prompt-{secrets.token_hex(4)}"
WITHIN_S: Final = 60
USAGE: Final = 2
NOT_RUNNING: Final = 14
CANNOT: Final = 20
REFUSED: Final = 24
TERMINATED: Final = 128 + signal.SIGTERM
TALKER: Final = (PYTHON, f"{PROGRAMS}/talker.py", "{workdir}", "--listen")
SCREEN: Final = (PYTHON, f"{PROGRAMS}/screen.py", "{workdir}")
EACH_KIND_OF_START: Final = pytest.mark.parametrize("start", ["job", "child-of-job", "leader"])
EACH_PID_NAMESPACE: Final = pytest.mark.parametrize(
    "where", [(), ("--new-pid-namespace",)], ids=["here", "new-pid-namespace"]
)

_PROGRAM_WITH_A_SESSION_KEYRING: Final = """
import ctypes, os, sys
assert ctypes.CDLL(None).syscall(250, 1, b"crckpt-restores") > 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def workdir() -> Iterator[Path]:
    """The directory for the program's reports; the program ends when the directory is removed."""
    with open_workdir() as workdir:
        yield workdir


@EACH_KIND_OF_START
def test_missing_terminal_is_refused_with_the_command_to_type(crckpt: Crckpt, workdir: Path, start: str) -> None:
    """A terminal is missing in cron and with --detach."""
    _stop(crckpt, workdir, start, TALKER)
    assert "--tty new" in crckpt.run("restore", JOB, "--detach", status=REFUSED).err


@EACH_KIND_OF_START
def test_user_can_type_interrupt_detach_and_attach_again_at_a_new_terminal(
    crckpt: Crckpt, workdir: Path, start: str
) -> None:
    """The test presses real keys, as at the original terminal."""
    _stop(crckpt, workdir, start, TALKER)
    with _restored(crckpt, workdir) as terminal, _shell(crckpt, workdir) as shell:
        _wait_for_output(terminal["log"])
        assert stat.S_IMODE(Path(terminal["log"]).stat().st_mode) == 0o600
        assert f"{JOB}\tPID {terminal['pid']}, python3" in complete(["attach", ""])
        shell.enter(f"{PROGRAM} attach {JOB}")
        shell.wait_for(lambda shown: "says" in shown, "its output")
        shell.enter("hello there")
        wait_for(lambda: _read_status(workdir).facts["heard"] == ["hello", "there"], WITHIN_S, "the words to arrive")
        shell.press("C-c")
        wait_for(lambda: _read_status(workdir).facts["interrupts"] == 1, WITHIN_S, "the interrupt to arrive")
        with Tmux(workdir / "second", "bash", "--norc", environment=crckpt.environment) as second:
            second.enter(f"{PROGRAM} attach {JOB}")
            second.wait_for(lambda shown: _shows(shown, "or end it: kill "), "a refusal")
            assert "attaching to" not in second.shown
        shell.press("C-]")
        shell.wait_for(lambda shown: "keeps running as PID" in shown, "to be detached")
        before = _read_status(workdir).counter
        wait_for(lambda: _read_status(workdir).counter > before + 1, WITHIN_S, "it to keep running")
        shell.enter(f"clear; {PROGRAM} attach {_read_status(workdir).pid}; echo ended with $?")
        shell.wait_for(lambda shown: "says" in shown and "keeps running as" not in shown, "its output again")
        os.kill(_read_status(workdir).pid, signal.SIGTERM)
        shell.wait_for(lambda shown: f"ended with {TERMINATED}\n" in f"{shown}\n", "its exit status")
        wait_for(lambda: not runs(terminal["holder"]), WITHIN_S, "the holder to end")
        assert _find_terminal(crckpt, terminal["holder"]) is None


@EACH_KIND_OF_START
@EACH_PID_NAMESPACE
def test_stop_key_does_not_stop_the_program(crckpt: Crckpt, workdir: Path, start: str, where: tuple[str, ...]) -> None:
    """There is no shell that could continue the program."""
    _stop(crckpt, workdir, start, TALKER)
    with _restored(crckpt, workdir, *where), _shell(crckpt, workdir) as shell:
        shell.enter(f"{PROGRAM} attach {JOB}")
        shell.wait_for(lambda shown: "says" in shown, "its output")
        shell.press("C-z")
        shell.wait_for(lambda shown: "^Z" in shown, "the key to arrive")
        at = _read_status(workdir).counter
        wait_for(lambda: _read_status(workdir).counter > at + 2, WITHIN_S, "it to go on")


@pytest.mark.parametrize("start", ["job", "leader"])
def test_full_screen_program_redraws_and_follows_the_size(crckpt: Crckpt, workdir: Path, start: str) -> None:
    """A client sees the alternate screen; afterwards the screen of the shell returns."""
    _stop(crckpt, workdir, start, SCREEN)
    with _restored(crckpt, workdir) as terminal, _shell(crckpt, workdir) as shell:
        shell.enter(f"{PROGRAM} attach {JOB}")
        shell.wait_for(lambda shown: shown.startswith("screen of 80x24"), "the screen")
        shell.resize(100, 30)
        shell.wait_for(lambda shown: shown.startswith("screen of 100x30"), "the new size")
        # The program gets the key itself and no signal.
        shell.press("C-c")
        shell.wait_for(lambda shown: "'\\x03'" in shown, "the key")
        shell.press("C-]")
        shell.wait_for(lambda shown: "keeps running as PID" in shown, "to be detached")
        shell.enter(f"clear; {PROGRAM} attach {JOB}")
        shell.wait_for(lambda shown: shown.startswith("screen of 100x30"), "the screen")
        shell.type("a")
        shell.wait_for(lambda shown: "'a'" in shown, "the key that brings the alternate screen")
        shell.press("C-]")
        shell.wait_for(lambda shown: "keeps running as PID" in shown and "'a'" not in shown, "the shell's own screen")
        # The next client has another size and another key to detach.
        shell.resize(90, 25)
        shell.enter(f"clear; {PROGRAM} attach {JOB} --detach-key ^A; echo ended with $?")
        shell.wait_for(lambda shown: shown.startswith("screen of 90x25"), "the screen, in this size")
        shell.press("C-]")
        shell.wait_for(lambda shown: "'\\x1d'" in shown, "the key that no longer detaches")
        shell.type("q")
        shell.wait_for(lambda shown: "ended with 7" in shown, "its exit status")
        wait_for(lambda: not runs(terminal["holder"]), WITHIN_S, "the holder to end")


def test_restored_python_prompt_answers(crckpt: Crckpt, workdir: Path) -> None:
    """The program leads its session and edits lines itself."""
    with Tmux(workdir, PYTHON, "-q") as window:
        window.wait_for(lambda shown: ">>>" in shown, "the prompt")
        window.enter("x = 6")
        pid = window.pid()
        crckpt.run("dump", str(pid), JOB, "--stop")
    _wait_gone(pid)
    with _restored(crckpt, workdir), _shell(crckpt, workdir) as shell:
        shell.enter(f"{PROGRAM} attach {JOB}; echo ended with $?")
        shell.press("Enter")
        shell.wait_for(lambda shown: ">>>" in shown, "the prompt")
        shell.enter("x * 7")
        shell.wait_for(lambda shown: "\n42" in shown, "the answer")
        shell.enter("exit(5)")
        shell.wait_for(lambda shown: "ended with 5" in shown, "its exit status")


@pytest.mark.parametrize("ends_by", ["itself", "crckpt"])
@EACH_PID_NAMESPACE
def test_crckpt_in_the_foreground_without_a_terminal_ends_with_the_program(
    crckpt: Crckpt, workdir: Path, ends_by: str, where: tuple[str, ...]
) -> None:
    """If systemd stops the service, the program ends."""
    _stop(crckpt, workdir, "job", TALKER)
    before = _read_status(workdir).counter
    process = crckpt.start("restore", JOB, "--tty", "new", *where)
    wait_for(lambda: _read_status(workdir).counter > before + 2, WITHIN_S, "it to go on")
    (terminal,) = crckpt.run("attach", "--list", "--json").document["result"]["terminals"]
    assert psutil.Process(terminal["pid"]).ppid() == terminal["holder"]
    os.kill(terminal["pid"] if ends_by == "itself" else process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == TERMINATED
    assert f"crckpt attach {JOB}" in err
    assert terminal["log"] in err
    wait_for(lambda: not runs(terminal["holder"]), WITHIN_S, "the holder to end")
    Path(terminal["log"]).unlink()


@pytest.mark.parametrize("start", ["job", "leader"])
def test_program_in_a_pid_namespace_has_a_new_terminal(crckpt: Crckpt, workdir: Path, start: str) -> None:
    """Input reaches the program, and its exit status is returned."""
    pid = _stop(crckpt, workdir, start, TALKER)
    with _restored(crckpt, workdir, "--new-pid-namespace") as terminal, _shell(crckpt, workdir) as shell:
        assert not runs(pid)
        shell.enter(f"{PROGRAM} attach {JOB}; echo ended with $?")
        shell.wait_for(lambda shown: "says" in shown, "its output")
        shell.enter("hello")
        wait_for(lambda: _read_status(workdir).facts["heard"] == ["hello"], WITHIN_S, "the word to arrive")
        shell.press("C-c")
        wait_for(lambda: _read_status(workdir).facts["interrupts"] == 1, WITHIN_S, "the interrupt to arrive")
        found = _find_terminal(crckpt, terminal["holder"])
        assert found is not None
        assert "attach" in psutil.Process(found["attached"]).cmdline()
        listed = crckpt.run("ps", "--json").document["result"]["processes"]
        assert [each["kind"] for each in listed if each["tree"] == terminal["pid"]] == ["terminal"]
        os.kill(terminal["pid"], signal.SIGTERM)
        shell.wait_for(lambda shown: f"ended with {TERMINATED}" in shown, "its exit status")
        wait_for(lambda: not runs(terminal["holder"]), WITHIN_S, "the holder to end")


@EACH_KIND_OF_START
def test_program_on_a_new_terminal_can_be_dumped_and_restored_again(crckpt: Crckpt, workdir: Path, start: str) -> None:
    """The program's new terminal is outside the tree, like any other."""
    _stop(crckpt, workdir, start, TALKER)
    for _ in range(2):
        with _restored(crckpt, workdir) as terminal:
            crckpt.run("dump", str(_read_status(workdir).pid), JOB, "--stop")
            wait_for(lambda held=terminal: not runs(held["holder"]), WITHIN_S, "the holder to end")  # type: ignore[misc]
            _wait_gone(terminal["pid"])


@pytest.mark.parametrize(
    ("start", "then"),
    [("job", ()), ("child-of-job", ("--new-pid-namespace",)), ("leader", ())],
    ids=["job-here", "child-of-job-new-pid-namespace", "leader-here"],
)
def test_program_in_a_new_pid_namespace_can_be_dumped_and_restored_again(
    crckpt: Crckpt, workdir: Path, start: str, then: tuple[str, ...]
) -> None:
    """The holder of the terminal leads the session there. A dump finds the program by its job and by its PID."""
    _stop(crckpt, workdir, start, TALKER)
    for words, target in (("--new-pid-namespace",), JOB), (then, None):
        before = _read_status(workdir).counter
        with _restored(crckpt, workdir, *words) as terminal, _shell(crckpt, workdir) as shell:
            wait_for(lambda at=before: _read_status(workdir).counter > at + 2, WITHIN_S, "it to go on")  # type: ignore[misc]
            shell.enter(f"{PROGRAM} attach {JOB}; echo ended with $?")
            shell.wait_for(lambda shown: "says" in shown, "its output")
            crckpt.run("dump", target or str(terminal["pid"]), JOB, "--incremental")
            at = _read_status(workdir).counter
            wait_for(lambda at=at: _read_status(workdir).counter > at + 2, WITHIN_S, "it to keep running")  # type: ignore[misc]
            shell.press("C-c")
            wait_for(lambda: _read_status(workdir).facts["interrupts"] != 0, WITHIN_S, "the interrupt to arrive")
            crckpt.run("dump", target or str(terminal["pid"]), JOB, "--stop")
            wait_for(lambda held=terminal: not runs(held["holder"]), WITHIN_S, "the holder to end")  # type: ignore[misc]
            _wait_gone(terminal["pid"])


def test_program_of_another_user_owns_its_new_terminal(crckpt: Crckpt, workdir: Path) -> None:
    """The program was started on a terminal of root. A restore there is refused; a new terminal is harmless."""
    shutil.copytree(PROGRAMS, workdir / "programs")
    os.chown(workdir, NOBODY, NOBODY)
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    talker = (PYTHON, "{workdir}/programs/talker.py", "{workdir}", "--listen")
    _stop(crckpt, workdir, "job", (*as_nobody, *talker))
    with _restored(crckpt, workdir):
        terminal = Path(f"/proc/{_read_status(workdir).pid}/fd/0").readlink()
        assert terminal.stat().st_uid == NOBODY


@EACH_PID_NAMESPACE
def test_program_of_another_user_does_not_get_our_session_keyring(
    crckpt: Crckpt, workdir: Path, where: tuple[str, ...]
) -> None:
    """The holder of the terminal starts CRIU, so the holder must not be in that session either."""
    shutil.copytree(PROGRAMS, workdir / "programs")
    os.chown(workdir, NOBODY, NOBODY)
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    asks = (PYTHON, "{workdir}/programs/attributes.py", "{workdir}", "session_keyring")
    _stop(crckpt, workdir, "leader", (*as_nobody, *asks))
    with _restored(replace(crckpt, before=(PYTHON, "-c", _PROGRAM_WITH_A_SESSION_KEYRING)), workdir, *where):
        before = _read_status(workdir).counter
        wait_for(lambda: _read_status(workdir).counter > before + 2, WITHIN_S, "the program to go on")
        session = str(_read_status(workdir).facts["process"])
        assert "crckpt-restores" not in session
        assert ";_ses'" in session


def test_other_users_cannot_attach_to_a_new_terminal(crckpt: Crckpt, workdir: Path) -> None:
    """The directory of the sockets is root's alone."""
    _stop(crckpt, workdir, "job", TALKER)
    with _restored(crckpt, workdir) as held:
        (path,) = Path("/run/crckpt/terminals").glob(f"{held['pid']}-*")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        connect = f"import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect({str(path)!r})"
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", PYTHON, "-c", connect]
        result = subprocess.run(as_nobody, capture_output=True, text=True, check=False)
        assert "PermissionError" in result.stderr


@EACH_PID_NAMESPACE
def test_failed_restore_holds_no_terminal(
    crckpt: Crckpt, workdir: Path, tmp_path: Path, where: tuple[str, ...]
) -> None:
    """The next restore works."""
    pid = _stop(crckpt, workdir, "job", TALKER)
    obstructed = ObstructedCriu(tmp_path)
    words = ("restore", JOB, "--tty", "new", "--detach", "--criu", str(obstructed.path), *where)
    with obstructed.waits_at_first() as obstacle:
        process = crckpt.start(*words)
        obstacle.wait_reached()
        holders = [each.pid for each in psutil.Process(process.pid).children() if _is_holder(each)]
        assert len(holders) == 1
        process.send_signal(signal.SIGINT)
        obstacle.let_go()
        assert "nothing is left behind" in process.communicate(timeout=WITHIN_S)[1]
    assert not runs(holders[0])
    assert not runs(pid)
    with _restored(crckpt, workdir):
        pass


@EACH_PID_NAMESPACE
def test_killed_crckpt_leaves_no_holder(crckpt: Crckpt, workdir: Path, tmp_path: Path, where: tuple[str, ...]) -> None:
    """CRIU gives up, and the holder has no terminal to hold."""
    pid = _stop(crckpt, workdir, "job", TALKER)
    obstructed = ObstructedCriu(tmp_path)
    with obstructed.waits_at_first() as obstacle:
        process = crckpt.start("restore", JOB, "--tty", "new", "--criu", str(obstructed.path), *where)
        obstacle.wait_reached()
        (holder,) = (each for each in psutil.Process(process.pid).children() if _is_holder(each))
        process.kill()
        process.communicate(timeout=WITHIN_S)
        assert holder.is_running()
        obstacle.let_go()
    wait_for(lambda: not runs(holder.pid), WITHIN_S, "the holder to end")
    assert not runs(pid)


@EACH_PID_NAMESPACE
def test_program_gets_sighup_if_the_holder_of_its_terminal_is_killed(
    crckpt: Crckpt, workdir: Path, where: tuple[str, ...]
) -> None:
    """The program sees a closed window. An attached client gets a message, and the next restore works."""
    _stop(crckpt, workdir, "job", TALKER)
    with _restored(crckpt, workdir, *where) as terminal, _shell(crckpt, workdir) as shell:
        shell.enter(f"{PROGRAM} attach {JOB}; echo ended with $?")
        shell.wait_for(lambda shown: "says" in shown, "its output")
        os.kill(terminal["holder"], signal.SIGKILL)
        shell.wait_for(lambda shown: f"ended with {CANNOT}" in shown, "a failure")
        assert _shows(shell.shown, "the process that holds the terminal has ended")
        assert _shows(shell.shown, f"what it wrote is in {terminal['log']}")
        wait_for(lambda: not runs(terminal["pid"]), WITHIN_S, "the program to end by SIGHUP")
        assert _find_terminal(crckpt, terminal["holder"]) is None
        _wait_gone(terminal["pid"])
    with _restored(crckpt, workdir):
        pass


def test_program_from_a_terminal_is_restored_without_one(crckpt: Crckpt, workdir: Path) -> None:
    """The program's output is discarded, its input is empty, and a second dump needs no terminal."""
    pid = _stop(crckpt, workdir, "job", TALKER)
    for _ in range(2):
        before = _read_status(workdir).counter
        crckpt.run("restore", JOB, "--tty", "null", "--detach")
        wait_for(lambda at=before: _read_status(workdir).counter > at + 2, WITHIN_S, "it to go on")  # type: ignore[misc]
        assert {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").glob("[012]")} == {"/dev/null"}
        crckpt.run("dump", str(pid), JOB, "--stop")
        _wait_gone(pid)


def test_stopped_job_is_not_restored_without_a_terminal_because_the_kernel_would_end_it(
    crckpt: Crckpt, workdir: Path
) -> None:
    """The kernel would end a stopped group that loses its parent.

    The restore is refused, and works with a new terminal.
    """
    with _shell(crckpt, workdir) as shell:
        shell.enter(shlex.join(word.format(workdir=workdir) for word in TALKER))
        wait_for(lambda: _read_status(workdir).counter > 5, WITHIN_S, "the program to start")
        pid = _read_status(workdir).pid
        shell.press("C-z")
        wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, WITHIN_S, "it to stop")
        crckpt.run("dump", str(pid), JOB, "--stop")
        _wait_gone(pid)
    process = crckpt.start("restore", JOB, "--tty", "null", "--detach")
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == REFUSED
    assert f"process {pid} (python3) was stopped when it was dumped" in err
    with _restored(crckpt, workdir):
        pass


@pytest.mark.parametrize("start", ["job", "leader"])
def test_output_of_a_restored_program_is_appended_to_a_file(
    crckpt: Crckpt, workdir: Path, tmp_path: Path, start: str
) -> None:
    """The program's input is empty."""
    pid = _stop(crckpt, workdir, start, TALKER)
    output = tmp_path / "output"
    output.write_text("before\n")
    before = _read_status(workdir).counter
    crckpt.run("restore", JOB, "--tty", str(output), "--detach")
    wait_for(lambda: _read_status(workdir).counter > before + 2, WITHIN_S, "it to go on")
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not runs(pid), WITHIN_S, "it to end")
    lines = output.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[1].startswith("says ")


def test_output_file_planted_by_others_is_refused(crckpt: Crckpt, workdir: Path, tmp_path: Path) -> None:
    """crckpt writes as root: not through a link, nor to a second name of another file."""
    _stop(crckpt, workdir, "job", TALKER)
    other = tmp_path / "other"
    other.touch()
    (tmp_path / "link").symlink_to(other)
    os.link(other, tmp_path / "second")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "second", "fifo"):
        process = crckpt.start("restore", JOB, "--tty", str(tmp_path / name), "--detach")
        _, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == USAGE, name
        assert f"--tty: cannot write to {tmp_path / name}: " in err
    assert other.read_bytes() == b""


def test_attach_without_a_terminal_is_refused(crckpt: Crckpt, workdir: Path) -> None:
    """The message says how a program gets a terminal."""
    with _shell(crckpt, workdir) as shell:
        shell.enter(f"{PROGRAM} attach nothing; echo ended with $?")
        shown = shell.wait_for(lambda shown: f"ended with {NOT_RUNNING}" in shown, "an answer")
        assert "nothing has no terminal to attach to" in shown


def _stop(crckpt: Crckpt, workdir: Path, start: str, argv: tuple[str, ...]) -> int:
    """Start a program at a terminal, checkpoint and end it; return its PID."""
    line = shlex.join(word.format(workdir=workdir) for word in argv)
    if start == "leader":
        window = Tmux(workdir, *shlex.split(line))
    else:
        window = Tmux(workdir, "bash", "--norc")
        window.enter(line if start == "job" else f"bash -c '{line}; true'")
    with window:
        wait_for(lambda: _read_status(workdir).counter > 5, WITHIN_S, "the program to start")
        pid = _read_status(workdir).pid
        crckpt.run("dump", str(pid), JOB, "--stop")
    _wait_gone(pid)
    return pid


def _wait_gone(pid: int) -> None:
    """Wait until the PID is free; the process that adopts orphans in the tests reaps it."""

    def is_gone() -> bool:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return not Path(f"/proc/{pid}").exists()

    wait_for(is_gone, WITHIN_S, f"{pid} to be gone")


@contextmanager
def _restored(crckpt: Crckpt, workdir: Path, *words: str) -> Iterator[dict[str, Any]]:
    """The program, restored onto a new terminal by a crckpt that has none; ended afterwards."""
    process = crckpt.start("restore", JOB, "--tty", "new", "--detach", "--json", *words)
    out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, f"{err}{out}"
    assert not err
    held = _find_terminal(crckpt, json.loads(out)["result"]["terminal"]["holder"])
    assert held is not None
    try:
        yield held
    finally:
        with suppress(ProcessLookupError):
            os.kill(held["pid"], signal.SIGKILL)
        wait_for(lambda: not runs(held["holder"]), WITHIN_S, "the holder to end")
        Path(held["log"]).unlink()


def _find_terminal(crckpt: Crckpt, holder: int) -> dict[str, Any] | None:
    found = crckpt.run("attach", "--list", "--json").document["result"]["terminals"]
    return next((each for each in found if each["holder"] == holder), None)


def _shell(crckpt: Crckpt, workdir: Path) -> Tmux:
    return Tmux(workdir / "shell", "bash", "--norc", environment=crckpt.environment)


def _shows(shown: str, text: str) -> bool:
    """Return whether a screen shows the text: folded at a space, or anywhere in a word."""
    return "".join(text.split()) in "".join(shown.split())


def _wait_for_output(log: str) -> None:
    wait_for(lambda: "says" in Path(log).read_text(), WITHIN_S, "its output in the log")


def _is_holder(process: psutil.Process) -> bool:
    return "crckpt.helper.terminal.server" in process.cmdline()


def _read_status(workdir: Path) -> Part:
    return statuses(workdir).get("", Part(0, 0, True, "", False, False, {}))
