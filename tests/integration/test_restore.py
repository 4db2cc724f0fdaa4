"""The parent of a restored program, the signals that reach it, and its end."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from command import PROGRAM, Crckpt
from stopped_trees import foreground, hang_ups_ignored, program, staging, stopped
from trees import PROGRAMS, PYTHON, Tree, open_workdir, runs, statuses, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

SIGNAL_RECORDER = program("record_signals")
STATUS = 13
REFUSED = 24
WITHIN_S = 60


@pytest.fixture
def tree(crckpt: Crckpt) -> Iterator[Tree]:
    """A program that notes signals, checkpointed and ended."""
    with stopped(crckpt, SIGNAL_RECORDER) as tree:
        yield tree


def test_foreground_restore_passes_signals_and_status(crckpt: Crckpt, tree: Tree) -> None:
    """crckpt is the parent of the program: it passes signals on, and ends with the program's own status."""
    before = tree.counters()
    with foreground(crckpt, "--json") as front:
        tree.wait_growth(before)
        assert psutil.Process(tree.pid).ppid() == front.pid
        lines: list[str] = []
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            front.send_signal(number)
            lines.append(number.name)
            wait_for(lambda: _read_signals(tree) == lines, WITHIN_S, f"{lines} to arrive, and nothing else")
        front.send_signal(signal.SIGUSR2)
        out, err = front.communicate(timeout=WITHIN_S)
    assert (front.returncode, err) == (STATUS, "")
    document = json.loads(out)
    assert document["status"] == "ok"
    assert document["result"]["program_status"] == STATUS
    assert document["result"]["pid"] == tree.pid
    assert staging(crckpt) == ()


@pytest.mark.parametrize(("number", "through_crckpt"), [(signal.SIGHUP, True), (signal.SIGKILL, False)])
def test_death_by_signal_gives_the_exit_status(
    crckpt: Crckpt, tree: Tree, number: signal.Signals, through_crckpt: bool
) -> None:
    """The status is 128 plus the signal's number, as in a shell."""
    before = tree.counters()
    with foreground(crckpt, "--json") as front:
        tree.wait_growth(before)
        os.kill(front.pid if through_crckpt else tree.pid, number)
        out, _ = front.communicate(timeout=WITHIN_S)
    assert front.returncode == 128 + number
    assert json.loads(out)["result"]["program_status"] == 128 + number


def test_program_keeps_running_if_crckpt_ignores_sighup(crckpt: Crckpt, tree: Tree) -> None:
    before = tree.counters()
    with hang_ups_ignored(), foreground(crckpt) as front:
        tree.wait_growth(before)
        front.send_signal(signal.SIGHUP)
        front.send_signal(signal.SIGUSR1)
        wait_for(lambda: _read_signals(tree) == ["SIGUSR1"], WITHIN_S, "it to go on, and hear what comes after")


def test_messages_do_not_mix_with_the_programs_output(crckpt: Crckpt, tree: Tree) -> None:
    """In the foreground, stdout belongs to the program."""
    before = tree.counters()
    with foreground(crckpt) as front:
        tree.wait_growth(before)
        os.kill(tree.pid, signal.SIGUSR2)
        out, err = front.communicate(timeout=WITHIN_S)
    assert (front.returncode, out) == (STATUS, "")
    assert f"as PID {tree.pid}" in err


@pytest.mark.parametrize("full", [False, True])
def test_crckpt_stays_the_parent_of_the_program_if_its_messages_cannot_be_written(
    crckpt: Crckpt, tree: Tree, full: bool
) -> None:
    """The reader of stderr has gone, or its disk is full."""
    before = tree.counters()
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("w") as disk, os.fdopen(writing, "w") as pipe:
        front = subprocess.Popen(
            [str(PROGRAM), "restore", "job"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=disk if full else pipe,
            env=crckpt.environment,
            start_new_session=True,
        )
    tree.wait_growth(before)
    front.send_signal(signal.SIGTERM)
    wait_for(lambda: _read_signals(tree) == ["SIGTERM"], WITHIN_S, "the signal to be passed on")
    os.kill(tree.pid, signal.SIGUSR2)
    assert front.wait(WITHIN_S) == STATUS


def test_program_outlives_a_killed_crckpt(crckpt: Crckpt, tree: Tree) -> None:
    """The program continues without its parent."""
    before = tree.counters()
    with foreground(crckpt) as front:
        tree.wait_growth(before)
        wait_for(lambda: staging(crckpt) == (), WITHIN_S, "crckpt to have tidied up")
        front.kill()
        front.wait(timeout=WITHIN_S)
    tree.wait_growth(tree.counters())
    assert psutil.Process(tree.pid).ppid() == os.getpid()


def test_detached_program_is_not_a_child_of_crckpt(crckpt: Crckpt, tree: Tree) -> None:
    """crckpt returns once the program runs, and the program continues."""
    before = tree.counters()
    result = crckpt.run("restore", "job", "--detach", "--json")
    assert result.document["result"]["pid"] == tree.pid
    assert result.document["result"]["program_status"] is None
    tree.wait_growth(before)
    # This process adopts orphans.
    assert psutil.Process(tree.pid).ppid() == os.getpid()
    assert staging(crckpt) == ()


def test_restore_waits_until_the_ended_tree_is_reaped(crckpt: Crckpt) -> None:
    """An ended tree keeps its PIDs until its parent has reaped it, here a second later."""
    with open_workdir() as workdir, _unreaped(workdir) as process:
        crckpt.run("dump", str(process.pid), "job")
        process.kill()
        wait_for(lambda: not runs(process.pid), WITHIN_S, "the program to end")
        reaps = threading.Timer(1.0, process.wait)
        reaps.start()
        crckpt.run("restore", "job", "--detach")
        assert not reaps.is_alive(), "the restore did not wait"
        assert runs(process.pid)
        os.kill(process.pid, signal.SIGKILL)


def test_output_to_an_outside_pipe_goes_to_the_standard_output_of_crckpt(crckpt: Crckpt) -> None:
    """The reader of the pipe is not in the checkpoint. In the foreground our own output replaces the pipe."""
    with _talker(crckpt) as (pid, workdir), foreground(crckpt) as front:
        _goes_on(workdir)
        os.kill(pid, signal.SIGTERM)
        out, _ = front.communicate(timeout=WITHIN_S)
    assert front.returncode == 128 + signal.SIGTERM
    numbers = [int(line.removeprefix("says ")) for line in out.splitlines()]
    assert numbers[0] > 1
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_json_output_of_restore_is_not_mixed_with_output_of_the_program(crckpt: Crckpt) -> None:
    """The output of the program goes to stderr."""
    with _talker(crckpt) as (pid, workdir), foreground(crckpt, "--json") as front:
        _goes_on(workdir)
        os.kill(pid, signal.SIGTERM)
        out, err = front.communicate(timeout=WITHIN_S)
    assert json.loads(out)["result"]["program_status"] == 128 + signal.SIGTERM
    assert all(line.startswith("says ") for line in err.splitlines())
    assert err


@pytest.mark.parametrize("where", [(), ("--new-pid-namespace",)])
def test_detached_writer_to_an_outside_pipe_gets_no_sigpipe(crckpt: Crckpt, where: tuple[str, ...]) -> None:
    """The output is discarded."""
    with _talker(crckpt) as (_, workdir):
        crckpt.run("restore", "job", "--detach", *where)
        _goes_on(workdir)


def test_restore_of_a_program_whose_output_is_an_outside_socket_is_refused(crckpt: Crckpt) -> None:
    """A command run by ssh and a service of systemd have such output. Nothing starts, and a pipe is accepted."""
    with _talker(crckpt) as (pid, _):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            argv = [str(PROGRAM), "restore", "job"]
            null = subprocess.DEVNULL
            result = subprocess.run(
                argv,
                stdin=null,
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                text=True,
                env=crckpt.environment,
                check=False,
            )
        assert result.returncode == REFUSED
        assert "the tree writes to crckpt's output, which is a socket" in result.stderr
        assert "| cat" in result.stderr
        assert not Path(f"/proc/{pid}").exists()


@contextmanager
def _talker(crckpt: Crckpt) -> Iterator[tuple[int, Path]]:
    """The PID of an ended program from a checkpoint that wrote into our pipe, and the directory of its reports."""
    with open_workdir() as workdir:
        argv = [PYTHON, str(PROGRAMS / "talker.py"), str(workdir)]
        null = subprocess.DEVNULL
        with subprocess.Popen(argv, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True) as talker:
            assert talker.stdout is not None
            for _ in range(5):
                talker.stdout.readline()
            result = crckpt.run("dump", str(talker.pid), "job")
            assert f"fd 1 of PID {talker.pid} is a pipe to a process outside the tree" in result.out
            assert "the output of crckpt restore" in result.out
            talker.kill()
        (workdir / "status.json").unlink()
        yield talker.pid, workdir


@contextmanager
def _unreaped(workdir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A counter that is reaped when the test says so."""
    null = subprocess.DEVNULL
    argv = [PYTHON, str(PROGRAMS / "counter.py"), str(workdir)]
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, start_new_session=True)
    try:
        wait_for(lambda: any(part.counter > 5 for part in statuses(workdir).values()), WITHIN_S, "the counter")
        yield process
    finally:
        process.kill()
        process.wait()


def _goes_on(workdir: Path) -> None:
    wait_for(lambda: bool(statuses(workdir)), WITHIN_S, "the program to say something")
    first = statuses(workdir)[""].counter
    wait_for(lambda: statuses(workdir)[""].counter > first + 10, WITHIN_S, "it to go on")


def _read_signals(tree: Tree) -> object:
    return tree.facts()[""]["signals"]
