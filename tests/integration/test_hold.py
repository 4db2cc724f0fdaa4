"""With --stop the tree is held until its checkpoint is committed: an earlier failure only costs time."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pytest
from cases import CASES
from command import Crckpt, network_locks
from dump_moments import (
    ENDS_WITHIN_S,
    assert_runs_on,
    checkpoints,
    find_below,
    is_traced,
    manifests,
)
from small_disk import store_on_disk
from target_processes import halted
from trees import PROGRAMS, PYTHON, Case, started, wait_for

from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.find import find
from crckpt.criu.hold import holds_at
from crckpt.errors import StoreUnusable
from crckpt.model import DumpOptions

PATIENCE_S: Final = 2
DIALOGUE: Final = Case("dialogue", (PYTHON, "{programs}/dialogue.py", "{workdir}", "--mib", "16"), tcp="keep")
COUNTER: Final = next(case for case in CASES if case.name == "counter")


@pytest.mark.parametrize(
    ("size", "filler"),
    [("60m", 40), ("40m", 0)],
    ids=("criu", "commit"),
)
def test_dump_on_a_full_disk_leaves_the_tree_running(tmp_path: Path, size: str, filler: int) -> None:
    """The disk becomes full while CRIU writes, or the pack does not fit. The held tree and its connection continue."""
    with store_on_disk(tmp_path / "store", size) as crckpt, started(COUNTER) as small, started(DIALOGUE) as tree:
        crckpt.run("dump", str(small.pid), "small")
        kept = checkpoints(crckpt)
        # The preflight would see that the pack does not fit.
        words = ("--tcp", "keep", "--stop", "--json", "--no-preflight")
        dump = crckpt.start("dump", str(tree.pid), "job", *words, CRCKPT_STOP_AT="hold.commit")
        wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, ENDS_WITHIN_S, "crckpt to stop")
        (crckpt.store / "filler").write_bytes(bytes(filler << 20))
        dump.send_signal(signal.SIGCONT)
        out, _ = dump.communicate(timeout=ENDS_WITHIN_S)
        assert dump.returncode == 10
        error = json.loads(out)["error"]
        assert f"no space is left in {crckpt.store}, the store; no checkpoint" in error["message"]
        assert error["message"].endswith("; no checkpoint was made; the tree keeps running")
        assert "--store" in error["hint"]
        assert_runs_on(tree, frozenset())
        assert not list(crckpt.store.glob("tmp/*"))
        assert checkpoints(crckpt) == kept
        crckpt.run("verify", "--all")
        crckpt.run("rm", "small")
        crckpt.run("gc")


def test_disk_without_space_is_reported_before_the_freeze(tmp_path: Path) -> None:
    """The disk is so full that not even the transaction can be created."""
    with store_on_disk(tmp_path / "store", "1m") as crckpt, started(COUNTER) as tree:
        words = ("dump", str(tree.pid), "--stop", "--staging", str(tmp_path))
        crckpt.run(*words, status=10)
        subprocess.run(["dd", "if=/dev/zero", f"of={crckpt.store}/filler"], check=False, stderr=subprocess.DEVNULL)
        assert not os.statvfs(crckpt.store).f_bavail
        result = crckpt.run(*words, status=10)
        assert "no space is left" in result.err
        assert "the tree keeps running\n" in result.err
        assert "hint: " in result.err
        assert_runs_on(tree, frozenset())


def test_dump_and_restore_work_with_a_store_on_a_noexec_mount(tmp_path: Path) -> None:
    """The program that CRIU runs in a hold is not in the store."""
    with store_on_disk(tmp_path / "store", "40m", "noexec") as crckpt, started(COUNTER) as tree:
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), "job", "--stop")
        tree.wait_gone()
        crckpt.run("restore", "job", "--detach")
        tree.wait_growth(before)
        crckpt.run("verify", "--all")


@pytest.mark.parametrize("how", ["SIGSTOP", "ptrace"])
@pytest.mark.parametrize(
    ("case", "at", "made", "when"),
    [
        (COUNTER, "hold.commit", 0, "before the freeze"),
        (DIALOGUE, "pack.rename", 0, "frozen"),
        (DIALOGUE, "hold.commit:2", 1, "frozen"),
    ],
    ids=["before the freeze", "storing", "stored"],
)
def test_tree_continues_if_crckpt_is_stopped_in_a_hold(
    crckpt: Crckpt, case: Case, at: str, made: int, when: str, how: str
) -> None:
    """The tree continues, with its connection.

    A crckpt that is continued later reports this and does not end the tree.
    """
    with started(case) as tree:
        tcp = ("--tcp", case.tcp) if case.tcp else ()
        words = ("--stop", *tcp)
        # The first dump creates the store: without one, CRIU would start only after the preflight.
        crckpt.run("dump", str(tree.pid), "job", *tcp)
        dump = crckpt.start("dump", str(tree.pid), "job", *words, CRCKPT_STOP_AT=at, CRCKPT_PATIENCE_S=str(PATIENCE_S))
        stopped = psutil.STATUS_STOPPED
        wait_for(lambda: psutil.Process(dump.pid).status() == stopped, ENDS_WITHIN_S, "crckpt to stop")
        with halted(dump.pid, how):
            if how == "ptrace":
                dump.send_signal(signal.SIGCONT)
            wait_for(lambda: _has_ended_criu(dump.pid), 2 * PATIENCE_S + ENDS_WITHIN_S, "CRIU to give up")
            assert_runs_on(tree, frozenset())
        out, error = dump.communicate(timeout=ENDS_WITHIN_S)
        assert dump.returncode == 21, out + error
        assert "crckpt did not answer" in error
        assert when in error
        assert "the tree keeps running" in error
        assert ("no checkpoint was made" in error) == (not made)
        assert_runs_on(tree, frozenset())
        assert manifests(crckpt.store) == 1 + made
        assert not list(crckpt.store.glob("tmp/*"))
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), "job", *words)
        tree.wait_gone()
        crckpt.run("verify", "--all")
        crckpt.run("restore", "job", "--detach")
        tree.wait_growth(before)


def test_reported_freeze_includes_what_crckpt_does_in_the_hold(crckpt: Crckpt) -> None:
    waits_s = 1.5
    with started(COUNTER) as tree:
        dump = crckpt.start("dump", str(tree.pid), "job", "--stop", CRCKPT_STOP_AT="hold.read")
        wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, 60, "crckpt to be in the hold")
        time.sleep(waits_s)
        dump.send_signal(signal.SIGCONT)
        output, error = dump.communicate(timeout=60)
        assert dump.returncode == 0, error
        (frozen_s,) = re.findall(r"frozen ([\d.]+) s", output)
        assert float(frozen_s) >= waits_s
        (found,) = crckpt.run("list", "job", "--json").document["result"]["checkpoints"]
        assert found["statistics"]["frozen_ms"] >= 1000 * waits_s


@pytest.mark.parametrize("which", ["criu", "script"])
def test_dump_continues_a_criu_that_was_stopped(crckpt: Crckpt, which: str) -> None:
    """A CRIU that runs as the user of the tree can be stopped by that user, and so can its script."""
    with started(COUNTER) as tree:
        dump = crckpt.start("dump", str(tree.pid), "job", CRCKPT_STOP_AT="hold.commit")
        wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, 60, "crckpt to be in the hold")
        (criu,) = find_below(dump.pid, "--images-dir")
        stopped = criu if which == "criu" else criu.children(recursive=True)[-1]
        os.kill(stopped.pid, signal.SIGSTOP)
        dump.send_signal(signal.SIGCONT)
        _, error = dump.communicate(timeout=60)
        assert dump.returncode == 0, error
        tree.wait_growth(tree.counters())


def test_restore_whose_crckpt_was_stopped_before_the_commit_leaves_no_process_and_no_network_lock(
    crckpt: Crckpt,
) -> None:
    with started(DIALOGUE) as tree:
        crckpt.run("dump", str(tree.pid), "job", "--tcp", "keep", "--stop")
        tree.wait_gone()
        locks, before = network_locks(), tree.counters()
        at_commit = {"CRCKPT_STOP_AT": "hold.commit", "CRCKPT_PATIENCE_S": str(PATIENCE_S)}
        restore = crckpt.start("restore", "job", "--detach", **at_commit)
        stopped = psutil.STATUS_STOPPED
        wait_for(lambda: psutil.Process(restore.pid).status() == stopped, ENDS_WITHIN_S, "crckpt to stop")
        wait_for(lambda: _has_ended_criu(restore.pid), 2 * PATIENCE_S + ENDS_WITHIN_S, "CRIU to give up")
        restore.send_signal(signal.SIGCONT)
        out, error = restore.communicate(timeout=ENDS_WITHIN_S)
        assert restore.returncode == 23, out + error
        assert "crckpt did not answer CRIU after CRIU had built the tree" in error
        assert "nothing is left behind" in error
        tree.wait_gone()
        assert network_locks() == locks
        crckpt.run("restore", "job", "--detach")
        tree.wait_growth(before)


def _has_ended_criu(pid: int) -> bool:
    """Return whether the children of a stopped crckpt have ended."""
    states = [child.status() for child in psutil.Process(pid).children()]
    return bool(states) and set(states) == {psutil.STATUS_ZOMBIE}


def test_tree_stays_frozen_until_its_checkpoint_is_committed(crckpt: Crckpt) -> None:
    """No process of the tree runs before the commit. Its connection survives the dump and the restore."""
    with started(DIALOGUE) as tree:
        before = tree.counters()
        words = ("dump", str(tree.pid), "job", "--tcp", "keep", "--stop")
        dump = crckpt.start(*words, CRCKPT_STOP_AT="pack.rename")
        stopped = psutil.STATUS_STOPPED
        wait_for(lambda: psutil.Process(dump.pid).status() == stopped, ENDS_WITHIN_S, "crckpt to store")
        assert manifests(crckpt.store) == 0
        assert is_traced(tree)
        assert {psutil.Process(pid).status() for pid in tree.pids()} == {"tracing-stop"}
        assert network_locks()
        dump.send_signal(signal.SIGCONT)
        out, error = dump.communicate(timeout=ENDS_WITHIN_S)
        assert dump.returncode == 0, error
        assert "the tree has ended" in out
        tree.wait_gone()
        assert network_locks(), "packets of the stopped tree's connection are let through"
        crckpt.run("restore", "job", "--detach", "--tcp", "keep")
        tree.wait_growth(before)
        assert_runs_on(tree, frozenset())


def test_removing_the_checkpoint_of_a_stopped_tree_lifts_its_lock(crckpt: Crckpt) -> None:
    """`rm` reports the lifted lock. The checkpoint of a running tree has no lock."""
    with started(DIALOGUE) as tree:
        crckpt.run("dump", str(tree.pid), "job", "--tcp", "keep")
        crckpt.run("dump", str(tree.pid), "job", "--tcp", "keep", "--stop")
        (lock,) = network_locks()
        assert crckpt.run("rm", "job~1", "--json").document["result"]["lifted_locks"] == []
        assert network_locks() == {lock}
        # The program would be lost.
        crckpt.run("rm", "job", status=24)
        assert network_locks() == {lock}
        output = crckpt.run("rm", "job", "--yes").out
        assert "removed the network lock" in output
        assert lock in output
        assert not network_locks()


@pytest.mark.parametrize("when", ["before", "after"])
def test_tree_ends_after_a_killed_crckpt_only_if_the_commit_was_recorded(tmp_path: Path, when: str) -> None:
    """If SIGKILL comes before the commit is recorded, the tree keeps running. After the record, the tree ends."""
    paths = _work(tmp_path)
    with started(COUNTER) as tree:
        words = [str(find(None, None).path), str(tree.pid), str(paths.work), when]
        died = subprocess.run([sys.executable, str(PROGRAMS / "dies_in_hold.py"), *words], check=False)
        assert died.returncode == -signal.SIGKILL
        if when == "before":
            wait_for(lambda: not is_traced(tree), ENDS_WITHIN_S, "CRIU to resume the tree")
            assert_runs_on(tree, frozenset())
        else:
            tree.wait_gone()


def test_exception_in_the_hold_is_raised_after_criu_resumed_the_tree(tmp_path: Path) -> None:
    """CRIU undoes its work first, then the failure is raised."""
    paths = _work(tmp_path)
    held_states = []
    with started(COUNTER) as tree:

        def fail() -> None:
            held_states.append(psutil.Process(tree.pid).status())
            raise StoreUnusable("no room")

        with pytest.raises(StoreUnusable, match="no room"):
            _dumped(paths, tree.pid, fail)
        assert held_states == ["tracing-stop"]
        assert_runs_on(tree, frozenset())
        assert _dumped(_work(tmp_path / "again"), tree.pid, lambda: None).ok
        tree.wait_gone()


def _dumped(paths: Paths, pid: int, in_hold: Callable[[], None]) -> CriuResult:
    with holds_at(paths.work / "hold", "post-dump") as (hold,):
        to = Paths(paths.images, paths.work, hold.script)
        command = dump_command(find(None, None).path, pid, to, DumpOptions(), leave_running=False)
        return run_criu(command, paths.work / "dump.log", hold=hold, in_hold=in_hold)


def _work(directory: Path) -> Paths:
    paths = Paths(directory / "work/images", directory / "work")
    paths.images.mkdir(parents=True)
    return paths
