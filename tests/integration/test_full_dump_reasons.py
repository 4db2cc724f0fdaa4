"""A full dump of a formerly tracked tree gives the reason, in one line and in the JSON."""

from __future__ import annotations

import os
import signal

import pytest
from command import Crckpt
from incremental import NO_TRACKER, dump_incrementally, keeper
from rounds import Target
from stopped_trees import JOB

from crckpt.ops.dump.lineage import ENDED_ON_REQUEST
from crckpt.tracking.keeper.client import KILLED

pytestmark = [pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER), pytest.mark.usefixtures("orphans_are_reaped")]

RESTORED_REASON = "the tree was restored or started again since it was tracked"
NEW_TRACKER_HINT = "; --incremental starts a new tracker"


def reason(crckpt: Crckpt, target: Target, *words: str) -> str:
    """The reason for a full dump: one line of the output, which a dry run reports before it as JSON."""
    planned = crckpt.run("dump", str(target.pid), JOB, "--dry-run", "--json", *words).document["result"]["tracked"]
    output = crckpt.run("dump", str(target.pid), JOB, *words).out
    (line,) = [line for line in output.splitlines() if line.startswith("full dump: ")]
    why = line.removeprefix("full dump: ")
    assert planned["why_full"].partition(";")[0] == why.partition(";")[0]
    return why


def restore(crckpt: Crckpt, target: Target, *words: str) -> None:
    """Stop the tree, and restore it."""
    crckpt.run("dump", str(target.pid), JOB, "--stop", *words)
    target.end()
    crckpt.run("restore", JOB, "--detach")


def test_full_dump_says_that_the_tree_was_restored(crckpt: Crckpt, target: Target) -> None:
    """The first dump of the tree was full, too: only the reason shows that the tree was tracked."""
    restore(crckpt, target, "--incremental")
    assert reason(crckpt, target) == f"{RESTORED_REASON}{NEW_TRACKER_HINT}"
    assert reason(crckpt, target) == f"{RESTORED_REASON}{NEW_TRACKER_HINT}", "as long as it is not tracked"
    assert dump_incrementally(crckpt, target)["tracked"]["why_full"] == RESTORED_REASON
    assert dump_incrementally(crckpt, target)["tracked"]["base"]
    restore(crckpt, target)
    assert reason(crckpt, target) == f"{RESTORED_REASON}{NEW_TRACKER_HINT}"
    assert reason(crckpt, target, "--no-incremental") == "--no-incremental was given"


def test_full_dump_says_that_the_tracker_was_ended_or_killed(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    assert reason(crckpt, target, "--no-incremental") == "--no-incremental was given"
    crckpt.run("ps", "--end", str(target.pid))
    assert reason(crckpt, target) == f"{ENDED_ON_REQUEST}{NEW_TRACKER_HINT}"
    assert dump_incrementally(crckpt, target)["tracked"]["why_full"] == ENDED_ON_REQUEST
    os.kill(keeper(crckpt, target)["pid"], signal.SIGKILL)
    assert reason(crckpt, target) == KILLED
    assert dump_incrementally(crckpt, target)["tracked"]["base"]


def test_full_dump_for_another_job_says_that_the_tracker_was_ended(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    crckpt.run("ps", "--end", str(target.pid))
    output = crckpt.run("dump", str(target.pid), "other").out
    assert f"full dump: {ENDED_ON_REQUEST}{NEW_TRACKER_HINT}\n" in output


def test_dump_of_a_tree_that_was_never_tracked_gives_no_reason_why_it_is_full(crckpt: Crckpt, target: Target) -> None:
    for _ in range(2):
        result = crckpt.run("dump", str(target.pid), JOB, "--json")
        assert result.document["result"]["tracked"] is None
    assert "full dump" not in crckpt.run("dump", str(target.pid), JOB, "--no-incremental").out
