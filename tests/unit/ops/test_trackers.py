"""Which trees are tracked, and what becomes of their keepers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from keepers import KEEPER, answering, leave_socket, listening, trackable
from msgspec.structs import replace
from smaller_bounds import smaller_bounds

from crckpt.errors import HostCannot, UsageError
from crckpt.host import proc
from crckpt.ops.trackers import trackers
from crckpt.tracking.keeper import client
from crckpt.tracking.keeper.client import was_killed
from crckpt.tracking.keeper.protocol import Answer


@pytest.fixture
def root() -> Iterator[proc.Process]:
    """A program that a keeper may track."""
    with trackable() as found:
        yield found


def description(root: proc.Process) -> Answer:
    """What a keeper of this tree says, which this process is."""
    return Answer(keeper=replace(KEEPER, pid=os.getpid(), root=root.pid))


def test_a_tracked_tree_with_what_its_keeper_uses(root: proc.Process) -> None:
    with listening(root) as listener, answering(listener, description(root)):
        (found,) = (each for each in trackers().trackers if each.keeper.root == root.pid)
    assert found.usage is not None
    assert found.usage.memory_bytes > 1 << 20


def test_a_keeper_is_ended_by_its_tree(root: proc.Process) -> None:
    with listening(root) as listener, answering(listener, description(root), Answer()) as asked:
        result = trackers(str(root.pid))
    assert result.ended
    assert [each.keeper.root for each in result.trackers] == [root.pid]
    assert [request.do for request in asked] == ["tell", "end"]


def test_a_tree_that_is_not_tracked(root: proc.Process) -> None:
    with pytest.raises(UsageError) as refused:
        trackers(str(root.pid))
    assert refused.value.message == f"the tree of PID {root.pid} is not tracked"
    assert refused.value.hint == "list the tracked trees: crckpt trackers"


def test_a_keeper_that_was_killed_is_forgotten(root: proc.Process) -> None:
    """Otherwise the next dump would start another."""
    leave_socket(root)
    result = trackers(str(root.pid))
    assert (result.trackers, result.ended) == ((), True)
    assert not was_killed(root)


def test_a_keeper_that_does_not_answer(root: proc.Process) -> None:
    with smaller_bounds(client, _PATIENCE_TELL_S=0.1), listening(root):
        (words,) = (words for words in trackers().unanswered if str(os.getpid()) in words)
        assert words.startswith(f"its tracker (process {os.getpid()}) does not answer; end it: kill -KILL ")
        with pytest.raises(HostCannot, match="does not answer"):
            trackers(str(root.pid))
