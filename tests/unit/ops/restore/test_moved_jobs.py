"""A restore is refused wherever it could make a second copy of a program that is being moved, or was moved."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from image_sets import described, of_pages, store
from msgspec.structs import replace
from recorded_moves import PEER, STATES, ended_root, live_root, record_move

from crckpt.errors import PreflightRefused, StoreLocked, StoreUnusable
from crckpt.model import JobName
from crckpt.ops.restore.moved_jobs import forget_move, refuse_moved, restoring
from crckpt.ops.restore.request import RestoreRequest
from crckpt.store import Checkpoint, Repository
from crckpt.store.layout import move_name
from crckpt.store.move_states import FIRST, Side, State
from crckpt.store.moves import Move, read_move, remove_move, store_move

# By side and state: what a restore is told while the crckpt of the record works, and once it has died.
WAIT, FINISH, FINISH_THERE, DESPITE, FREE = (
    "wait until crckpt (PID",
    "crckpt migrate",
    f"on {PEER}",
    "--despite-move",
    "",
)
EXPECTED: dict[tuple[Side, State], tuple[str, str]] = {
    ("source", "copying"): (FREE, FREE),
    ("source", "handing-over"): (WAIT, FREE),
    # The root that the record names has ended.
    ("source", "committing"): (WAIT, FINISH),
    ("source", "ended"): (WAIT, FINISH),
    ("source", "done"): (DESPITE, DESPITE),
    ("source", "aborted"): (FREE, FREE),
    ("destination", "receiving"): (FREE, DESPITE),
    ("destination", "prepared"): (WAIT, FINISH_THERE),
    ("destination", "committed"): (WAIT, FINISH),
    ("destination", "done"): (FREE, FREE),
    ("destination", "aborted"): (DESPITE, DESPITE),
}


def refusal(repository: Repository, checkpoint: Checkpoint, *, despite_move: bool = False) -> PreflightRefused | None:
    try:
        refuse_moved(repository, checkpoint, RestoreRequest("job", despite_move=despite_move))
    except PreflightRefused as refused:
        return refused
    return None


def check(refused: PreflightRefused | None, expected: str, move: Move) -> None:
    assert (refused is not None) == bool(expected)
    if refused is None:
        return
    assert refused.is_in_use
    assert PEER in refused.message
    assert expected in refused.hint
    if expected in (FINISH, FINISH_THERE):
        assert refused.hint.endswith(f"crckpt migrate --resume {move.id}")
        assert (f"on {PEER}" in refused.hint) == (expected == FINISH_THERE)


@pytest.mark.parametrize("alive", [True, False], ids=["crckpt works", "crckpt has died"])
@pytest.mark.parametrize(("side", "state"), STATES)
def test_restore_of_a_moved_job_is_refused_depending_on_the_state_of_the_move(
    repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], side: Side, state: State, alive: bool
) -> None:
    move = record_move(repository, side, state, checkpoints[1], alive=alive, root=ended_root())
    expected = EXPECTED[side, state][0 if alive else 1]
    for checkpoint in checkpoints:
        check(refusal(repository, checkpoint), expected, move)
        # The user's word that the program does not run there counts only once the move is over.
        check(refusal(repository, checkpoint, despite_move=True), "" if expected == DESPITE else expected, move)


def test_restore_of_a_job_that_was_never_moved_is_accepted(
    repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    record_move(repository, "source", "ended", job="another")
    assert refusal(repository, checkpoints[1]) is None


@pytest.mark.parametrize(
    ("side", "state", "is_held", "expected"),
    [
        # The tree ended on neither host: the move was aborted.
        ("source", "committing", False, FREE),
        # CRIU decides within moments.
        ("source", "committing", True, FINISH),
        # It runs here: the preflight finds its PIDs in use.
        ("destination", "committed", False, FREE),
        ("destination", "committed", True, FINISH),
    ],
)
def test_restore_of_a_moved_job_is_refused_depending_on_whether_its_tree_runs(
    repository: Repository,
    checkpoints: tuple[Checkpoint, Checkpoint],
    side: Side,
    state: State,
    is_held: bool,
    expected: str,
) -> None:
    with live_root(held=is_held) as root:
        move = record_move(repository, side, state, checkpoints[1], root=root)
        check(refusal(repository, checkpoints[1]), expected, move)


@pytest.mark.parametrize(("side", "state"), [("source", "done"), ("destination", "aborted")])
def test_checkpoints_after_the_move_can_be_restored(
    repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], side: Side, state: State
) -> None:
    """Checkpoints after the move are of a program that was restored here."""
    first, second = checkpoints
    record_move(repository, side, state, first)
    assert refusal(repository, first) is not None
    assert refusal(repository, second) is None


def test_time_of_a_move_decides_after_its_checkpoint_was_removed(
    repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    first, second = checkpoints
    record_move(repository, "source", "done", second)
    repository.remove((second.id,))
    assert refusal(repository, first) is not None
    later = store(repository, tmp_path, of_pages(7), described(created=datetime.now(UTC) + timedelta(seconds=1)))
    assert refusal(repository, later) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"id": "0"}', b"\xff" * 100], ids=repr)
def test_restore_is_refused_if_the_record_of_a_move_is_damaged(
    repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], content: bytes
) -> None:
    """crckpt cannot know where the program runs: the user has to find out."""
    record_move(repository, "source", "ended", checkpoints[1])
    path = repository.root / move_name(JobName("job"))
    path.chmod(0o600)
    path.write_bytes(content)
    with pytest.raises(StoreUnusable, match="the record of the move of job cannot be read") as raised:
        refuse_moved(repository, checkpoints[1], RestoreRequest("job", despite_move=True))
    assert f"remove the file {path}" in raised.value.hint


def test_restore_despite_the_move_lifts_the_fence(
    repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    record_move(repository, "source", "done", checkpoints[1])
    forget_move(repository, checkpoints[1])
    assert read_move(repository.backend, JobName("job")) is None
    assert refusal(repository, checkpoints[1]) is None
    forget_move(repository, checkpoints[1])


@pytest.mark.parametrize(("side", "words"), [("source", f"to {PEER}"), ("destination", f"here from {PEER}")])
def test_restore_that_waits_for_a_move_is_reported(repository: Repository, side: Side, words: str) -> None:
    move = record_move(repository, side, FIRST[side], alive=True)
    with repository.restoring(move.job):
        assert _find_holder(repository, move) == f"job is being moved {words} by crckpt (PID {os.getpid()})"
        # Another process owns the move.
        store_move(repository.backend, replace(move, owner=replace(move.owner, pid=os.getppid())))
        assert _find_holder(repository, move).startswith("another restore of job is in progress: PID")
        remove_move(repository.backend, move.job)
        record_move(repository, side, FIRST[side])
        assert _find_holder(repository, move).startswith("another restore of job is in progress: PID")


def _find_holder(repository: Repository, move: Move) -> str:
    with pytest.raises(StoreLocked) as caught, restoring(repository, move.job, alone=True, timeout=0):
        pass
    return caught.value.message
