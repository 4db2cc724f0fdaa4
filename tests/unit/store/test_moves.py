"""Records of moves that hold what another host has said."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.model import JobName
from crckpt.store.moves import advance, begin_move, read_move, store_move
from crckpt.store.repository import Repository


@pytest.mark.parametrize("peer", ["", "a\nb", "\x1b[2J", "\udcff", "x" * 1000])
def test_whatever_a_peer_calls_itself_its_record_can_be_read(tmp_path: Path, peer: str) -> None:
    """A record that cannot be read prevents every restore of the job."""
    backend = Repository.open(tmp_path / "store", create=True).backend
    stored = store_move(backend, begin_move("destination", JobName("job"), peer))
    assert read_move(backend, "job") == stored
    assert 1 <= len(stored.peer) <= 300
    assert "\x1b" not in stored.peer


def test_whatever_the_reason_its_record_can_be_read(tmp_path: Path) -> None:
    backend = Repository.open(tmp_path / "store", create=True).backend
    move = begin_move("source", JobName("job"), "there")
    stored = store_move(backend, advance(move, "aborted", why="no file /tmp/\udcff\x1b[2J" + "x" * (1 << 20)))
    assert read_move(backend, "job") == stored
    assert len(stored.why) == 4096
