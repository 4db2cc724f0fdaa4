"""`dump --async` returns when the tree runs; `list` shows the state of the checkpoint, also after a crash."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from command import PROGRAM, Crckpt
from stopped_trees import JOB, program, staging
from trees import Tree, runs, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

USAGE: Final = 2
ENDED: Final = 14
LOCKED: Final = 11
REFUSED: Final = 24
WITHIN_S: Final = 60
LAST_STEP_BEFORE_DURABLE: Final = "manifest-directory.rename"


def _listed(crckpt: Crckpt) -> dict[str, Any]:
    listed: dict[str, Any] = crckpt.run("list", "--json").document["result"]
    return listed


def _state(crckpt: Crckpt) -> list[str]:
    return [one["state"] for one in _listed(crckpt)["pending"]]


@contextmanager
def _stored_later(crckpt: Crckpt, tree: Tree) -> Iterator[int]:
    """A dump that has returned and is not durable; the PID of the storing process, which waits for SIGCONT."""
    result = crckpt.run("dump", str(tree.pid), JOB, "--async", CRCKPT_STOP_AT=LAST_STEP_BEFORE_DURABLE)
    assert "the tree keeps running" in result.out
    (one,) = _listed(crckpt)["pending"]
    pid = int(one["pid"])
    try:
        wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, WITHIN_S, "it to stop")
        yield pid
    finally:
        if runs(pid):
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not runs(pid), WITHIN_S, "it to end")


def test_checkpoint_is_listed_as_committing_until_durable(crckpt: Crckpt, tree: Tree) -> None:
    first = crckpt.run("dump", str(tree.pid), JOB, "--json").document["result"]["checkpoint"]["id"]
    with _stored_later(crckpt, tree) as pid:
        tree.wait_growth(tree.counters())
        assert _state(crckpt) == ["committing"]
        assert f"PID {pid} stores it" in crckpt.run("list", JOB).out
        assert [one["id"] for one in _listed(crckpt)["checkpoints"]] == [first]
        assert f"PID {pid}" in crckpt.run("gc", status=LOCKED, CRCKPT_LOCK_S="1").err
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not runs(pid), WITHIN_S, "it to be stored")
    assert _state(crckpt) == []
    assert len(_listed(crckpt)["checkpoints"]) == 2
    assert staging(crckpt) == ()
    crckpt.run("verify", "--all")


def test_checkpoint_stored_in_the_background_can_be_restored(crckpt: Crckpt) -> None:
    with started(program("counter")) as tree:
        before = tree.counters()
        with _stored_later(crckpt, tree) as pid:
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: not runs(pid), WITHIN_S, "it to be stored")
        tree.end()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGKILL, "ended before the checkpoint was stored"), (signal.SIGTERM, "interrupted by SIGTERM")],
)
def test_crash_loses_only_the_pending_checkpoint_and_reports_it(
    crckpt: Crckpt, tree: Tree, number: signal.Signals, why: str
) -> None:
    crckpt.run("dump", str(tree.pid), JOB)
    with _stored_later(crckpt, tree) as pid:
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not runs(pid), WITHIN_S, "it to end")
    tree.wait_growth(tree.counters())
    assert _state(crckpt) == ["lost"]
    assert why in crckpt.run("list").out
    assert len(_listed(crckpt)["checkpoints"]) == 1
    crckpt.run("verify", "--all")
    crckpt.run("gc")
    assert _state(crckpt) == []
    assert staging(crckpt) == ()


def test_checkpoint_committed_before_a_crash_is_not_reported_lost(crckpt: Crckpt, tree: Tree) -> None:
    crckpt.run("dump", str(tree.pid), JOB, "--async", CRCKPT_KILL_AT="pending.unlink")
    wait_for(lambda: len(_listed(crckpt)["checkpoints"]) == 1, WITHIN_S, "it to be stored")
    wait_for(lambda: _state(crckpt) == [], WITHIN_S, "the crash")
    crckpt.run("gc")


def test_dump_in_the_background_reports_a_refusal_before_it_detaches(crckpt: Crckpt, tree: Tree) -> None:
    assert "no process" in crckpt.run("dump", "999999", JOB, "--async", status=ENDED).err
    result = crckpt.run("dump", str(os.getpid()), JOB, "--async", "--json", status=REFUSED)
    assert result.document["error"]["code"] == REFUSED
    assert "--async" in crckpt.run("dump", str(tree.pid), JOB, "--stop", "--async", status=USAGE).err
    assert not crckpt.store.exists()


def test_checkpoint_is_stored_without_a_reader_of_the_output(crckpt: Crckpt, tree: Tree) -> None:
    """The checkpoint is stored although the output cannot be written."""
    with Path("/dev/full").open("w") as full:
        words = [str(PROGRAM), "dump", str(tree.pid), JOB, "--async"]
        subprocess.run(words, stdin=subprocess.DEVNULL, stdout=full, env=crckpt.environment, check=True, timeout=60)
    wait_for(lambda: len(_listed(crckpt)["checkpoints"]) == 1 and not _state(crckpt), WITHIN_S, "it to be stored")


def test_json_output_says_that_the_checkpoint_is_still_being_stored(crckpt: Crckpt, tree: Tree) -> None:
    result = crckpt.run("dump", str(tree.pid), JOB, "--async", "--json").document["result"]
    assert result["committing"]
    assert result["checkpoint"] is None
    assert not result["dry_run"]
    wait_for(lambda: len(_listed(crckpt)["checkpoints"]) == 1 and not _state(crckpt), WITHIN_S, "it to be stored")
