"""The place of a failure by name, in this very process: what may have changed since has no name."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from crckpt.criu.explain import Explanation, FailureLocation
from crckpt.host import proc
from crckpt.host.observe.tree import Observed, observe
from crckpt.ops.failure_locations import name_place_in_tree


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


@pytest.fixture
def observation(listener: socket.socket) -> Observed:
    own = proc.read_process(os.getpid())
    assert own is not None
    return observe(own, own)


def _path(seen: Observed, fd: int, pid: int | None = None) -> str:
    explanation = Explanation(None, (), place=FailureLocation(pid or os.getpid(), fd=fd))
    place = name_place_in_tree(seen, explanation, inside=False)
    assert place is not None
    return place.path


def test_socket_that_was_observed_before_the_dump_is_named_in_the_error(
    observation: Observed, listener: socket.socket
) -> None:
    assert _path(observation, listener.fileno()) == f"tcp 127.0.0.1:{listener.getsockname()[1]} (listen)"


def test_socket_created_after_the_observation_is_named_in_the_error(observation: Observed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as new:
        assert _path(observation, new.fileno()) == f"tcp 127.0.0.1:{new.getsockname()[1]} (listen)"


def test_descriptor_that_was_reused_is_not_named_in_the_error(observation: Observed, listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        os.dup2(other.fileno(), listener.fileno())
        assert _path(observation, listener.fileno()) == ""


def test_descriptors_of_ended_or_unobserved_processes_are_not_named(
    observation: Observed, listener: socket.socket
) -> None:
    replaced = replace(observation.tree.root, start=observation.tree.root.start + 1)
    tree = proc.Tree(replaced, (replaced,))
    assert _path(replace(observation, tree=tree), listener.fileno()) == ""
    assert _path(observation, listener.fileno(), os.getppid()) == ""


def test_pipe_in_an_error_is_named_by_its_link_in_proc_fd(observation: Observed) -> None:
    reads, writes = os.pipe()
    try:
        assert _path(observation, reads).startswith("pipe:[")
    finally:
        os.close(reads)
        os.close(writes)
