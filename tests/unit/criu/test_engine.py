"""Following CRIU to its end, with a small script that plays CRIU: it asks the hold's script and writes a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from own_process import descriptors

from crckpt.criu.engine import CriuResult, CriuRun, run_criu
from crckpt.criu.hold import holds_at
from crckpt.errors import HostCannot

SOON = 20.0
CRIU = """#!/bin/sh
# LOG [SCRIPT]: what CRIU does, as far as it can be seen from outside
cd "${1%/*}"
echo "early complaint" >&2
echo "begun" >> "$1"
if [ -n "$2" ]; then
    CRTOOLS_SCRIPT_ACTION=pre-dump "$2" || exit 9
    if ! CRTOOLS_SCRIPT_ACTION=post-dump "$2"; then
        echo "undone" >> "$1"
        exit 1
    fi
fi
echo "done" >> "$1"
exit ${3:-0}
"""


@pytest.fixture
def criu(tmp_path: Path) -> Path:
    """The script."""
    path = tmp_path / "criu"
    path.write_text(CRIU)
    path.chmod(0o700)
    return path


def held_run(criu: Path, tmp_path: Path, in_hold: object) -> CriuResult:
    assert callable(in_hold)
    log = tmp_path / "dump.log"
    with holds_at(tmp_path / "hold", "post-dump") as (hold,):
        return run_criu((str(criu), str(log), str(hold.script)), log, hold=hold, in_hold=lambda: in_hold(log))


def test_run_without_a_hold_returns_status_log_and_times(criu: Path, tmp_path: Path) -> None:
    argv = (str(criu), str(tmp_path / "dump.log"))
    outcome = run_criu(argv, tmp_path / "dump.log")
    assert outcome == CriuResult(argv, 0, "early complaint\nbegun\ndone\n", outcome.started, outcome.ended)
    assert outcome.ok
    assert outcome.started < outcome.ended


def test_outcome_of_a_failed_criu_has_its_exit_status(criu: Path, tmp_path: Path) -> None:
    outcome = run_criu((str(criu), str(tmp_path / "dump.log"), "", "5"), tmp_path / "dump.log")
    assert (outcome.ok, outcome.status) == (False, 5)


def test_criu_ended_by_a_signal_gives_a_negative_status(tmp_path: Path) -> None:
    outcome = run_criu(("sh", "-c", "kill -SEGV $$"), tmp_path / "dump.log")
    assert (outcome.status, outcome.log) == (-signal.SIGSEGV, "")


def test_criu_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostCannot):
        run_criu((str(tmp_path / "none"),), tmp_path / "dump.log")


def test_hold_is_committed_if_its_callback_returns(criu: Path, tmp_path: Path) -> None:
    seen = []
    outcome = held_run(criu, tmp_path, lambda log: seen.append(log.read_text()))
    assert seen == ["begun\n"], "in the hold CRIU has begun and is not done"
    assert (outcome.status, outcome.log) == (0, "early complaint\nbegun\ndone\n")


def test_hold_is_aborted_if_its_callback_raises(criu: Path, tmp_path: Path) -> None:
    def fail(_log: Path) -> None:
        raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"):
        held_run(criu, tmp_path, fail)
    assert (tmp_path / "dump.log").read_text() == "begun\nundone\n"


def test_hold_is_aborted_if_the_commit_cannot_be_recorded(criu: Path, tmp_path: Path) -> None:
    def break_it(_log: Path) -> None:
        (tmp_path / "hold/post-dump/undecided").unlink()

    with pytest.raises(FileNotFoundError):
        held_run(criu, tmp_path, break_it)
    assert (tmp_path / "dump.log").read_text() == "begun\nundone\n"


def test_criu_that_ends_before_the_hold_runs_no_callback(tmp_path: Path) -> None:
    with holds_at(tmp_path / "hold", "post-dump") as (hold,):
        outcome = run_criu(
            ("sh", "-c", "exit 3"), tmp_path / "dump.log", hold=hold, in_hold=lambda: pytest.fail("there was no hold")
        )
    assert outcome.status == 3


def test_running_criu_leaks_no_descriptor(criu: Path, tmp_path: Path) -> None:
    before = descriptors()
    held_run(criu, tmp_path, lambda _log: None)
    assert descriptors() == before


def test_criu_has_its_own_session_unless_the_tree_is_on_our_terminal(tmp_path: Path) -> None:
    tell = ("sh", "-c", "ps -o sid= -p $$; readlink /proc/self/fd/0")
    session, stdin = run_criu(tell, tmp_path / "a.log").log.split()
    assert (int(session) != os.getsid(0), stdin) == (True, "/dev/null")
    terminal, other = os.openpty()
    try:
        session, stdin = CriuRun(tell, tmp_path / "b.log", terminal=other).follow().log.split()
        assert (int(session), stdin) == (os.getsid(0), os.ttyname(other))
    finally:
        os.close(terminal)
        os.close(other)


def test_criu_inherits_the_descriptors_that_it_is_given(tmp_path: Path) -> None:
    with (tmp_path / "given").open("w") as given:
        outcome = run_criu(("readlink", f"/proc/self/fd/{given.fileno()}"), tmp_path / "a.log", keep=[given.fileno()])
    assert outcome.log == f"{tmp_path / 'given'}\n"


DRIVER = """
import os, sys
from pathlib import Path
from crckpt.criu.engine import run_criu
from crckpt.criu.hold import holds_at
from crckpt.errors import Interrupted
from crckpt.host.process.signals import handle_interrupts

criu, work = sys.argv[1], Path(sys.argv[2])
log = work / "dump.log"
go = work / "go"

def waiting():
    print("in the hold", flush=True)
    sys.stdin.read()

handle_interrupts()
try:
{body}
    print("ended with", outcome.status)
except Interrupted as error:
    print(error, "after", log.read_text().split()[-1])
"""

RUN_WITH_A_HOLD = """
with holds_at(work / "hold", "post-dump") as (hold,):
    outcome = run_criu((criu, str(log), str(hold.script)), log, hold=hold, in_hold=waiting)
"""

RUN_WITHOUT_A_HOLD = """
os.mkfifo(go)
print("running", flush=True)
outcome = run_criu(("sh", "-c", f"echo begun > {log}; read line < {go}; echo done >> {log}"), log)
"""

RUN_BEFORE_THE_HOLD = """
os.mkfifo(go)
print("running", flush=True)
with holds_at(work / "hold", "post-dump") as (hold,):
    late = ("sh", "-c", f'read line < {go}; exec "$@"', "sh", criu, str(log), str(hold.script))
    outcome = run_criu(late, log, hold=hold, in_hold=lambda: print("never"))
"""


def driver(body: str, criu: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """A process that follows CRIU and gets interruptions; it has printed its first line."""
    code = DRIVER.format(body=textwrap.indent(body, "    "))
    process = subprocess.Popen(
        [sys.executable, "-c", code, criu, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interruption_of_crckpt_in_the_hold_aborts_it(criu: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = driver(RUN_WITH_A_HOLD, criu, tmp_path)
    process.send_signal(number)
    assert process.communicate(timeout=SOON)[0] == f"interrupted by {number.name} after undone\n"


def test_sigkill_of_crckpt_in_the_hold_aborts_it(criu: Path, tmp_path: Path) -> None:
    process = driver(RUN_WITH_A_HOLD, criu, tmp_path)
    process.kill()
    process.communicate(timeout=SOON)
    log = tmp_path / "dump.log"
    subprocess.run(["sh", "-c", f"until grep -q undone '{log}'; do sleep 0.01; done"], check=True, timeout=SOON)
    assert log.read_text() == "begun\nundone\n"


def test_interruption_outside_a_hold_waits_for_criu(criu: Path, tmp_path: Path) -> None:
    process = driver(RUN_WITHOUT_A_HOLD, criu, tmp_path)
    with (tmp_path / "go").open("w") as go:  # opens once CRIU reads
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        go.write("\n")
    assert process.communicate(timeout=SOON)[0] == "interrupted by SIGTERM after done\n"


def test_interruption_before_the_hold_aborts_it(criu: Path, tmp_path: Path) -> None:
    process = driver(RUN_BEFORE_THE_HOLD, criu, tmp_path)
    with (tmp_path / "go").open("w") as go:
        process.send_signal(signal.SIGINT)
        go.write("\n")
    assert process.communicate(timeout=SOON)[0] == "interrupted by SIGINT after undone\n"
