"""Why a tree has no tracker although it, or the job's last checkpoint, had one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from dump_targets import predict_lineage

from crckpt.helper.kinds import KEEPER, record_path
from crckpt.host import proc
from crckpt.ops.dump.lineage import ENDED_ON_REQUEST, open_lineage, why_no_tracker
from crckpt.tracking.keeper.client import keepers, mark_ended, was_ended
from crckpt.tracking.keeper.protocol import ENDED_MARK

CRIU = Path("/nonexistent/criu")


@pytest.fixture
def root() -> Iterator[proc.Process]:
    """This process, whose keeper was not ended."""
    process = proc.read_process(os.getpid())
    assert process is not None
    yield process
    record_path(KEEPER, process.identity, ENDED_MARK).unlink(missing_ok=True)


def other(root: proc.Process, boot_id: str = "", pid: int = 0) -> proc.Identity:
    return proc.Identity(boot_id or proc.boot_id(), pid or root.pid, 1)


def test_missing_tracker_is_explained_by_the_identity_of_the_tracked_root(root: proc.Process) -> None:
    assert why_no_tracker(root, None) == ""
    assert why_no_tracker(root, root.identity) == "its tracker has ended"
    restored = "the tree was restored or started again since it was tracked"
    assert why_no_tracker(root, other(root)) == restored
    assert why_no_tracker(root, other(root, pid=1)) == restored
    rebooted = "the host was rebooted, or is another one, since the program was tracked"
    assert why_no_tracker(root, other(root, boot_id="0-0")) == rebooted
    older = "the last checkpoint of the job was incremental, but no tracker runs for this tree"
    assert why_no_tracker(root, proc.Identity("", 0, 0)) == older


def test_tracker_ended_on_request_is_remembered_until_its_process_ends(root: proc.Process) -> None:
    record_path(KEEPER, root.identity, ENDED_MARK).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark_ended(root.pid)
    assert was_ended(root)
    assert why_no_tracker(root, None) == ENDED_ON_REQUEST
    # The next listing of all keepers removes the mark of a process that has ended.
    gone = record_path(KEEPER, root.identity, ENDED_MARK).with_name(f"{root.pid}-1.ended")
    gone.touch()
    for one in keepers():
        if isinstance(one, tuple):
            one[1].close()
    assert (gone.exists(), was_ended(root)) == (False, True)


@pytest.mark.parametrize(
    ("wanted", "apart", "reason"),
    [
        (False, False, "--no-incremental was given"),
        (None, True, "crckpt cannot track a tree whose CRIU runs as another user or in namespaces of the tree"),
        (None, False, "the host was rebooted, or is another one, since the program was tracked; --incremental starts"),
    ],
)
def test_dump_of_a_formerly_tracked_tree_explains_why_full(
    root: proc.Process, wanted: bool | None, apart: bool, reason: str
) -> None:
    before = other(root, boot_id="0-0")
    lineage = open_lineage(root, CRIU, wanted=wanted, apart=apart, before=before)
    assert lineage is not None
    assert (lineage.keeper, lineage.parent, lineage.tracks) == (None, None, False)
    assert lineage.summary.why_full.startswith(reason)

    def no_store() -> None:
        pytest.fail("nothing is needed of it")

    predicted = predict_lineage(root, CRIU, no_store, wanted=wanted, apart=apart, before=before)  # type: ignore[arg-type]
    assert predicted == lineage.summary
    assert open_lineage(root, CRIU, wanted=wanted, apart=apart) is None
