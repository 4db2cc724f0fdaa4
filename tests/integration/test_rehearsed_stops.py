"""`dump --stop --rehearse` ends a tree only after its checkpoint was restored in isolation."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt, network_locks
from remote import remote
from stopped_trees import BY_NAME, JOB, program, staging
from trees import PYTHON, Case, runs, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 21
REFUSED: Final = 24
WITHIN_S: Final = 60
REHEARSED_STOP: Final = ("--stop", "--rehearse")


@pytest.mark.parametrize("name", ["family", "growing-log", "unix-sockets", "tcp-pair", "deleted-files", "sysv-ipc"])
def test_tree_is_ended_after_its_rehearsal(crckpt: Crckpt, name: str) -> None:
    case = BY_NAME[name]
    with started(case) as tree:
        before = tree.counters()
        words = ("dump", str(tree.pid), JOB, *REHEARSED_STOP, *(("--tcp", case.tcp) if case.tcp else ()))
        output = crckpt.run(*words).out
        assert "rehearsed: restored in isolation in " in output
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_json_output_of_a_dump_reports_its_rehearsal(crckpt: Crckpt) -> None:
    for words, is_rehearsed in ((REHEARSED_STOP, True), (("--stop",), False)):
        with started(BY_NAME["counter"]) as tree:
            result = crckpt.run("dump", str(tree.pid), JOB, *words, "--json").document["result"]
            assert result["rehearsed"] is is_rehearsed
            assert result["stopped"]


@pytest.mark.parametrize(
    ("what", "argument", "reason"),
    [
        ("signal", signal.SIGSEGV, "was ended by signal 11"),
        ("child", signal.SIGKILL, "was ended by signal 9"),
        ("exit", 7, "ended with status 7"),
    ],
)
def test_tree_whose_rehearsal_fails_is_not_ended(crckpt: Crckpt, what: str, argument: int, reason: str) -> None:
    with started(program("elsewhere", "127.0.0.1", what, str(int(argument)))) as tree:
        assert_runs_on(crckpt, tree.pid, reason)
        tree.wait_growth(tree.counters())


def test_tree_that_criu_cannot_restore_in_the_rehearsal_is_not_ended(crckpt: Crckpt) -> None:
    """A child has a network namespace of its own, which CRIU does not create again."""
    case = Case("nested", (PYTHON, "{programs}/blocked.py", "{workdir}", "nested_network"))
    with started(case) as tree:
        assert_runs_on(crckpt, tree.pid, "namespace", "--no-preflight")
        tree.wait_growth(tree.counters())


def test_dump_with_stop_of_an_untested_kind_works_with_rehearse(crckpt: Crckpt) -> None:
    with remote() as held:
        held.ask("import socket; rare = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 0); rare.bind((0, 0))")
        words = ("dump", str(held.pid), JOB, "--stop")
        error = crckpt.run(*words, status=REFUSED).err
        assert "no test covers the restore of: socket AF_NETLINK SOCK_DGRAM" in error
        assert "--rehearse" in error
        assert "no test covers" not in crckpt.run(*words, "--rehearse", "--dry-run").out
        assert "no test covers" not in crckpt.run(*words, "--rehearse").out
        held.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        assert held.ask("answer = rare.getsockname()[0]") == held.pid


def test_dump_option_rehearse_without_stop_is_refused(crckpt: Crckpt) -> None:
    with started(BY_NAME["counter"]) as tree:
        error = crckpt.run("dump", str(tree.pid), JOB, "--rehearse", status=2).err
        assert "--rehearse needs --stop" in error
        assert f"crckpt rehearse {JOB}" in error or "crckpt rehearse JOB" in error
        tree.wait_growth(tree.counters())


def test_rehearsed_stop_of_a_program_on_a_terminal_is_refused_before_the_freeze(crckpt: Crckpt) -> None:
    master, slave = os.openpty()
    try:
        with remote(slave) as program_:
            words = ("dump", str(program_.pid), JOB, *REHEARSED_STOP)
            for more in ((), ("--dry-run",)):
                error = crckpt.run(*words, *more, status=REFUSED).err
                assert "needs one, which a rehearsal does not have" in error
                assert "leave out --rehearse" in error
            assert runs(program_.pid)
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_interrupted_rehearsal_lets_the_tree_run(crckpt: Crckpt, number: signal.Signals, status: int) -> None:
    with started(BY_NAME["family"]) as tree:
        dump = crckpt.start("dump", str(tree.pid), JOB, *REHEARSED_STOP)
        wait_for(lambda: bool(rehearsal_inits()), WITHIN_S, "the rehearsal")
        dump.send_signal(number)
        error = dump.communicate(timeout=WITHIN_S)[1]
        assert dump.returncode == status, error
        wait_for(lambda: not rehearsal_inits(), WITHIN_S, "the rehearsal to end")
        wait_for(lambda: psutil.Process(tree.pid).status() != psutil.STATUS_TRACING_STOP, WITHIN_S, "the tree to run")
        tree.wait_growth(tree.counters())
        assert not crckpt.run("list", "--json").document["result"]["checkpoints"]
        # The next dump removes what the killed dump left behind, and succeeds.
        crckpt.run("dump", str(tree.pid), JOB, *REHEARSED_STOP)


def test_dump_of_another_tree_does_not_wait_for_a_rehearsal(crckpt: Crckpt) -> None:
    """A rehearsal may take minutes, and the dumps share the store."""
    with started(BY_NAME["family"]) as tree, started(BY_NAME["counter"]) as other:
        dump = crckpt.start("dump", str(tree.pid), JOB, *REHEARSED_STOP)
        wait_for(lambda: bool(rehearsal_inits()), WITHIN_S, "the rehearsal")
        dump.send_signal(signal.SIGSTOP)
        crckpt.run("dump", str(other.pid), "other", CRCKPT_LOCK_S="0.1")
        dump.send_signal(signal.SIGCONT)
        error = dump.communicate(timeout=WITHIN_S)[1]
        assert dump.returncode == 0, error


def rehearsal_inits() -> list[int]:
    """PIDs of the inits of rehearsals."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "crckpt.helper.pid_namespace.init" in process.cmdline():
                found.append(process.pid)
    return found


def assert_runs_on(crckpt: Crckpt, pid: int, reason: str, *words: str) -> None:
    """A rehearsed stop of this tree fails for this reason, and leaves the tree and nothing else."""
    error = crckpt.run("dump", str(pid), JOB, *REHEARSED_STOP, *words, status=FAILED).err
    assert "the rehearsal failed: " in error
    assert reason in error
    assert "no checkpoint was made; the tree keeps running" in error
    assert runs(pid)
    assert not crckpt.run("list", "--json").document["result"]["checkpoints"]
    assert not staging(crckpt)
    assert not network_locks()
    assert not [path for pid in crckpt.pids for path in Path("/sys/fs/cgroup").rglob(f"crckpt-rehearsal-{pid}-*")]
