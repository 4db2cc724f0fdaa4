"""The base of a dump, as known without touching the tree; and the effect of a lost tracker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dump_targets import predict_lineage
from image_sets import ONE_PROCESS, store
from keepers import KEEPER, answering, leave_socket, listening, trackable
from msgspec.structs import replace
from smaller_bounds import smaller_bounds

from crckpt.helper.channel import Channel, HelperEnded
from crckpt.helper.kinds import KEEPER as KIND
from crckpt.host import proc
from crckpt.model import CheckpointId
from crckpt.ops.dump.lineage import Lineage, open_lineage
from crckpt.ops.dump.result import LineageSummary
from crckpt.store import Checkpoint, Repository
from crckpt.tracking.dump_basis import CheckpointBase
from crckpt.tracking.keeper import client
from crckpt.tracking.keeper.client import KILLED, find_session
from crckpt.tracking.keeper.protocol import Answer, Keeper, KeeperRequest
from crckpt.tracking.preload.library import identity

CRIU = Path("/bin/true").resolve()
OTHER_ID = CheckpointId("ab" * 32)


@pytest.fixture
def root() -> Iterator[proc.Process]:
    """A program that a keeper may track."""
    with trackable() as found:
        yield found


@pytest.fixture
def checkpoint(repository: Repository, tmp_path: Path) -> Checkpoint:
    return store(repository, tmp_path, ONE_PROCESS)


@pytest.fixture
def keeper(root: proc.Process) -> Keeper:
    """A keeper that this crckpt could have started."""
    return replace(KEEPER, root=root.pid, tracker="soft-dirty", why="it works", criu=str(CRIU), identity=identity(CRIU))


def predicted(root: proc.Process, repository: Repository, *, wanted: bool | None) -> LineageSummary | None:
    return predict_lineage(root, CRIU, lambda: repository, wanted=wanted, apart=False)


def prediction(root: proc.Process, repository: Repository, keeper: Keeper) -> LineageSummary:
    """The predicted lineage of a tree whose keeper gives this answer."""
    with listening(root) as listener, answering(listener, Answer(keeper=keeper)):
        found = predicted(root, repository, wanted=None)
    assert found is not None
    return found


def test_untracked_tree_has_a_lineage_only_if_incremental_is_requested(
    root: proc.Process, repository: Repository
) -> None:
    assert predicted(root, repository, wanted=False) is None
    assert predicted(root, repository, wanted=None) is None
    summary = predicted(root, repository, wanted=True)
    assert summary is not None
    assert summary.why_full == "this tree has no tracker yet; the dump tries to start one"
    assert open_lineage(root, CRIU, wanted=None, apart=False) is None


def test_killed_tracker_is_the_predicted_reason_for_a_full_dump(root: proc.Process, repository: Repository) -> None:
    leave_socket(root)
    summary = predicted(root, repository, wanted=None)
    assert summary is not None
    assert summary.why_full == f"{KILLED}; the dump tries to start one"


@pytest.mark.parametrize(("wanted", "is_said"), [(True, True), (None, False), (False, False)])
def test_tree_that_cannot_be_tracked_has_a_reason_only_if_incremental_is_requested(
    root: proc.Process, repository: Repository, wanted: bool | None, is_said: bool
) -> None:
    summary = predict_lineage(root, CRIU, lambda: repository, wanted=wanted, apart=True)
    lineage = open_lineage(root, CRIU, wanted=wanted, apart=True)
    assert (summary is not None, lineage is not None) == (is_said, is_said)
    if summary is not None and lineage is not None:
        assert summary == lineage.summary
        assert "runs as another user or in namespaces of the tree" in summary.why_full


def test_next_incremental_dump_counts_from_the_committed_checkpoint(
    root: proc.Process, repository: Repository, keeper: Keeper, checkpoint: Checkpoint
) -> None:
    summary = prediction(root, repository, replace(keeper, base=checkpoint.id))
    assert (summary.tracker, summary.base, summary.why_full) == ("soft-dirty", checkpoint.id, "")


def test_missing_base_makes_the_dump_full(root: proc.Process, repository: Repository, keeper: Keeper) -> None:
    summary = prediction(root, repository, replace(keeper, base=OTHER_ID))
    assert summary.base is None
    assert OTHER_ID[:12] in summary.why_full


def test_tracker_gives_the_reason_for_a_full_dump(root: proc.Process, repository: Repository, keeper: Keeper) -> None:
    assert prediction(root, repository, replace(keeper, why_full="it was replaced")).why_full == "it was replaced"


def test_tracker_of_another_criu_makes_the_dump_full(
    root: proc.Process, repository: Repository, keeper: Keeper, checkpoint: Checkpoint
) -> None:
    summary = prediction(root, repository, replace(keeper, criu="/opt/criu", base=checkpoint.id))
    assert summary.base is None
    assert summary.why_full == (
        f"the tracker was started for another CRIU, /opt/criu; to start a new one: crckpt ps --end {root.pid}"
    )
    exchanged = prediction(root, repository, replace(keeper, identity="another", base=checkpoint.id))
    assert exchanged.base is None
    assert exchanged.why_full


def test_silent_tracker_makes_the_dump_full(root: proc.Process, repository: Repository) -> None:
    with listening(root, backlog=0), smaller_bounds(client, DESCRIBE_TIMEOUT_S=0.1):
        for _ in range(2):
            # First it accepts nobody, then its queue is full.
            summary = predicted(root, repository, wanted=None)
            assert summary is not None
            assert "does not answer" in summary.why_full
        lineage = open_lineage(root, CRIU, wanted=None, apart=False)
        assert lineage is not None
        assert lineage.keeper is None
        assert lineage.summary.why_full == lineage.summary.why
        assert "does not answer" in lineage.summary.why


def test_tracker_that_answers_late_in_a_freeze_is_not_asked_again(root: proc.Process) -> None:
    """The dump continues, and the next one is full: the keeper may not have examined the frozen tree in time."""
    with smaller_bounds(client, _PATIENCE_FROZEN_S=0.1), listening(root) as listener:
        lineage = Lineage(LineageSummary("", ""), find_session(root))
        lineage.report_freeze()
        assert lineage.has_lost_keeper
        lineage.commit(CheckpointBase(OTHER_ID))
        lineage.close()
        connection, _ = listener.accept()
        with closing(Channel(KIND, connection)) as channel:
            assert channel.receive(KeeperRequest).do == "frozen"
            with pytest.raises(HelperEnded):
                channel.receive(KeeperRequest)


@pytest.mark.parametrize("has_seen_freeze", [True, False])
def test_dump_is_committed_to_the_tracker_only_if_it_has_seen_the_freeze(
    root: proc.Process, has_seen_freeze: bool
) -> None:
    answers = [Answer()] * (1 + has_seen_freeze)
    with listening(root) as listener, answering(listener, *answers) as asked:
        lineage = Lineage(LineageSummary("", ""), find_session(root))
        lineage.tracks = True
        if has_seen_freeze:
            lineage.report_freeze()
        lineage.commit(CheckpointBase(OTHER_ID))
        lineage.close()
    assert [request.do for request in asked] == (["frozen", "committed"] if has_seen_freeze else [])


def test_dump_started_again_in_full_has_no_base() -> None:
    lineage = Lineage(LineageSummary("soft-dirty", "it works", base=OTHER_ID, rounds=2))
    lineage.restart_full("a page is missing")
    assert lineage.parent is None
    assert lineage.summary == LineageSummary("soft-dirty", "it works", why_full="a page is missing")
