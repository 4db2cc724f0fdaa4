"""Records of moves: reports of another host, records that are kept, and those that must not be overwritten."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from crckpt.errors import MoveInDoubt, PreflightRefused, RemoteError
from crckpt.host import proc
from crckpt.migrate.destination.recorded import read_state
from crckpt.migrate.resume import report_abort, settle_moves
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.ssh import Peer
from crckpt.model import JobName, MoveId
from crckpt.store import collect_garbage
from crckpt.store.backend.local import Backend
from crckpt.store.layout import move_name, unreported_name
from crckpt.store.move_states import State, find_report_step
from crckpt.store.moves import (
    Move,
    advance,
    begin_move,
    mark_reported,
    read_all_moves,
    read_last_moves,
    read_move,
    remove_move,
    store_move,
)
from crckpt.store.repository import Repository


@pytest.mark.parametrize("peer", ["", "a\nb", "\x1b[2J", "\udcff", "x" * 1000])
def test_record_is_readable_whatever_the_peers_name(tmp_path: Path, peer: str) -> None:
    """A record that cannot be read prevents every restore of the job."""
    backend = Repository.open(tmp_path / "store", create=True).backend
    stored = store_move(backend, begin_move("destination", JobName("job"), peer))
    assert read_move(backend, JobName("job")) == stored
    assert 1 <= len(stored.peer) <= 300
    assert "\x1b" not in stored.peer


def test_record_is_readable_whatever_the_reason(tmp_path: Path) -> None:
    backend = Repository.open(tmp_path / "store", create=True).backend
    move = begin_move("source", JobName("job"), "there")
    stored = store_move(backend, advance(move, "aborted", why="no file /tmp/\udcff\x1b[2J" + "x" * (1 << 20)))
    assert read_move(backend, JobName("job")) == stored
    assert len(stored.why) == 4096


def aborted(backend: Backend, peer: str = "first") -> Move:
    """The record of an aborted move whose destination may be in doubt."""
    begun = store_move(backend, begin_move("source", JobName("job"), peer))
    handed = store_move(backend, advance(begun, "handing-over", is_settled=False))
    return store_move(backend, advance(handed, "aborted", why="the connection was lost"))


def test_move_with_a_destination_in_doubt_is_kept(tmp_path: Path) -> None:
    """The record is kept by the next move, by a move from another host, and by a restore despite the move."""
    backend = Repository.open(tmp_path / "store", create=True).backend
    old = [aborted(backend, "first"), aborted(backend, "second")]
    coming = store_move(backend, begin_move("destination", JobName("job"), "third"))
    assert read_all_moves(backend) == ((*(replace(move, is_replaced=True) for move in old), coming), ())
    assert read_last_moves(backend) == ((coming,), ())
    store_move(backend, advance(coming, "aborted"))
    old.append(aborted(backend, "fourth"))
    remove_move(backend, JobName("job"))
    assert read_last_moves(backend) == ((), ())
    assert [move.id for move in read_all_moves(backend)[0]] == [move.id for move in old]
    for move in old:
        assert mark_reported(backend, move).is_settled
    assert read_all_moves(backend) == ((), ())


def test_record_of_a_killed_move_is_kept_as_aborted(tmp_path: Path) -> None:
    backend = Repository.open(tmp_path / "store", create=True).backend
    begun = advance(begin_move("source", JobName("job"), "first"), "handing-over", is_settled=False)
    killed = store_move(backend, replace(begun, owner=replace(begun.owner, start=begun.owner.start + 1)))
    store_move(backend, begin_move("source", JobName("job"), "second"))
    kept, _ = read_all_moves(backend)[0]
    assert (kept.id, kept.state, kept.is_replaced) == (killed.id, "aborted", True)


def test_record_of_a_settled_move_is_not_kept(tmp_path: Path) -> None:
    backend = Repository.open(tmp_path / "store", create=True).backend
    mark_reported(backend, aborted(backend))
    last = store_move(backend, begin_move("source", JobName("job"), "second"))
    assert read_all_moves(backend) == ((last,), ())


def test_crckpt_stopped_for_long_overwrites_no_record_of_a_later_move(tmp_path: Path) -> None:
    backend = Repository.open(tmp_path / "store", create=True).backend
    stopped = store_move(backend, begin_move("destination", JobName("job"), "first"))
    for move in (begin_move("source", JobName("job"), "second"), begin_move("destination", JobName("job"), "third")):
        with pytest.raises(PreflightRefused, match="another move of job is unfinished here"):
            store_move(backend, move)
    over = store_move(backend, advance(stopped, "aborted"))
    with pytest.raises(PreflightRefused, match="the move of job is over here: aborted"):
        store_move(backend, advance(stopped, "prepared"))
    last = store_move(backend, begin_move("destination", JobName("job"), "second"), replaces=over.id)
    with pytest.raises(PreflightRefused, match="another move of job is unfinished here"):
        store_move(backend, advance(stopped, "prepared"))
    store_move(backend, advance(last, "aborted"))
    with pytest.raises(PreflightRefused, match="another move of job has begun since"):
        store_move(backend, advance(stopped, "prepared"))
    with pytest.raises(PreflightRefused, match="another move of job has begun since"):
        store_move(backend, begin_move("destination", JobName("job"), "first"), replaces=over.id)


def test_damaged_record_of_an_aborted_move_affects_only_itself(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path / "store", create=True)
    old = [aborted(repository.backend, "first"), aborted(repository.backend, "second")]
    last = store_move(repository.backend, begin_move("source", JobName("job"), "third"))
    path = repository.root / unreported_name(old[0].id)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    found, (bad,) = read_all_moves(repository.backend)
    assert [move.id for move in found] == [old[1].id, last.id]
    assert str(path) in bad.remedy
    assert collect_garbage(repository).leftovers == ()


@pytest.mark.parametrize(
    ("there", "is_same_store", "expected"),
    [
        (None, True, "unknown"),
        (None, False, "unknown"),
        ("aborted", False, "unknown"),
        ("aborted", True, "settled"),
        ("prepared", False, "abort"),
        ("receiving", True, "abort"),
        ("committed", True, "runs-there"),
        ("done", True, "runs-there"),
    ],
)
def test_only_the_host_of_the_move_can_settle_it(
    tmp_path: Path, there: State | None, is_same_store: bool, expected: str
) -> None:
    assert find_report_step(there, is_same_store=is_same_store) == expected
    repository = Repository.open(tmp_path / "store", create=True)
    move = replace(aborted(repository.backend), peer_store="its store")
    answers: list[object] = [messages.MoveState(move.id, there), messages.Aborted()]
    sent: list[object] = []
    connection = SimpleNamespace(send=sent.append, receive=lambda *_kinds: answers.pop(0))
    hello = SimpleNamespace(hostname="node2", store="its store" if is_same_store else "another")

    def report() -> Move:
        return report_abort(repository, make_peer(connection, hello), move)

    if expected == "unknown":
        with pytest.raises(RemoteError, match=f"node2 does not know the move {move.id} of job to first") as raised:
            report()
        assert f"remove the file {repository.root}/{move_name(JobName('job'))}" in raised.value.hint
    elif expected == "runs-there":
        with pytest.raises(MoveInDoubt, match="it may run on both hosts"):
            report()
    else:
        assert report().is_settled
    assert sent[0] == messages.Resume(move.id, move.job if is_same_store else None)
    assert sent[1:] == ([messages.Abort(move.why)] if expected == "abort" else [])
    assert read_all_moves(repository.backend)[0][0].is_settled == (expected in ("abort", "settled"))


@pytest.mark.parametrize(("host", "is_asked"), [("first", True), ("hostile", False)])
def test_host_that_only_claims_the_store_of_a_move_does_not_settle_it(
    tmp_path: Path, host: str, is_asked: bool
) -> None:
    """The host may know the store from an earlier move. Only ssh knows which host was reached."""
    repository = Repository.open(tmp_path / "store", create=True)
    move = replace(aborted(repository.backend), peer_store="its store")
    store_move(repository.backend, move)
    sent: list[object] = []
    answer = messages.MoveState(move.id, "aborted")
    connection = SimpleNamespace(send=sent.append, receive=lambda *_kinds: answer)
    hello = SimpleNamespace(hostname="first", store="its store")
    settle_moves(repository, make_peer(connection, hello, host), JobName("job"))
    assert bool(sent) == is_asked
    assert read_all_moves(repository.backend)[0][0].is_settled == is_asked


def test_tree_that_ended_at_the_destination_settles_the_move(tmp_path: Path) -> None:
    """The user of the destination has declared the source gone."""
    repository = Repository.open(tmp_path / "store", create=True)
    move = replace(aborted(repository.backend), peer_store="its store")
    answer = messages.MoveState(move.id, "done", has_ended=True)
    connection = SimpleNamespace(send=lambda _message: None, receive=lambda *_kinds: answer)
    hello = SimpleNamespace(hostname="node2", store="its store")
    report_abort(repository, make_peer(connection, hello), move)
    assert read_all_moves(repository.backend)[0][0].is_settled


def test_destination_remembers_the_abort_of_an_unknown_move(tmp_path: Path) -> None:
    """A crckpt at the destination that was stopped before it recorded the move cannot begin it any more."""
    repository = Repository.open(tmp_path / "store", create=True)
    late = begin_move("destination", JobName("job"), "source")
    unknown = messages.Resume(late.id)
    assert read_state(repository, unknown, "source") == (messages.MoveState(late.id, None), None)
    changed = replace(unknown, aborted_job=late.job)
    assert read_state(repository, changed, "source")[0].state == "aborted"
    with pytest.raises(PreflightRefused, match="the move of job is over here: aborted"):
        store_move(repository.backend, late, replaces="")


def test_other_host_cannot_decide_about_a_moved_job(tmp_path: Path) -> None:
    """The host knows the move's id as its destination, and may connect to this host."""
    repository = Repository.open(tmp_path / "store", create=True)
    handed = advance(begin_move("source", JobName("job"), "hostile"), "handing-over")
    move = store_move(repository.backend, advance(handed, "committing"))
    answer = messages.MoveState(move.id, None)
    assert read_state(repository, messages.Resume(move.id), "hostile") == (answer, None)


@pytest.mark.parametrize("has_ended", [True, False])
def test_ended_tree_does_not_hide_an_abort(tmp_path: Path, has_ended: bool) -> None:
    """The job had been moved to that host before.

    The source could never settle a move that the destination does not know.
    """
    repository = Repository.open(tmp_path / "store", create=True)
    root = proc.read_process(os.getpid())
    assert root is not None
    live = proc.identify_live_root(root)
    move = begin_move("destination", JobName("job"), "source")
    moved = replace(move, state="done", root=replace(live, start=live.start + 1) if has_ended else live)
    store_move(repository.backend, moved)
    answer, _ = read_state(repository, messages.Resume(MoveId("0" * 16), aborted_job=moved.job), "source")
    assert answer.state == ("aborted" if has_ended else None)
    last = read_move(repository.backend, JobName("job"))
    assert last is not None
    assert last.id == ("0" * 16 if has_ended else moved.id)


def make_peer(connection: SimpleNamespace, hello: SimpleNamespace, host: str = "first") -> Peer:
    return Peer(host, cast(Connection, connection), cast(messages.Hello, hello))
