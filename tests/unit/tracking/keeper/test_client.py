"""Keepers are found by their sockets, also those that were killed, are stopped, or are of another user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from keepers import KEEPER, answering, keeper_socket, leave_socket, listening, trackable
from msgspec.structs import replace
from other_user import NOBODY
from own_process import descriptors
from small_programs import free_pid
from smaller_bounds import smaller_bounds

from crckpt.errors import DumpFailed, HostCannot
from crckpt.helper.channel import Channel, HelperOutdated, HelperSilent
from crckpt.helper.kinds import KEEPER as KIND
from crckpt.helper.kinds import HelperRecord
from crckpt.host import proc
from crckpt.host.disk.own_files import make_runtime_directory
from crckpt.tracking.keeper import client
from crckpt.tracking.keeper.client import (
    ENDED,
    KeeperSession,
    find_session,
    forget_killed,
    keepers,
    was_killed,
)
from crckpt.tracking.keeper.protocol import Answer, KeeperRequest

PATIENCE_S = 30.0


@pytest.fixture
def root() -> Iterator[proc.Process]:
    """A program that a keeper may track."""
    with trackable() as found:
        yield found


def session(root: proc.Process) -> closing[KeeperSession]:
    found = find_session(root)
    assert found is not None
    return closing(found)


def test_tree_without_a_tracker_gives_no_connection(root: proc.Process) -> None:
    assert find_session(root) is None
    assert not was_killed(root)
    assert list(keepers(root.pid)) == []


def test_killed_tracker_is_remembered_until_forgotten(root: proc.Process) -> None:
    leave_socket(root)
    before = descriptors()
    assert find_session(root) is None
    assert was_killed(root)
    (record,) = keepers(root.pid)
    assert was_killed(root), "its tree runs"
    assert isinstance(record, HelperRecord)
    forget_killed(record)
    assert not was_killed(root)
    assert descriptors() == before


def test_socket_of_a_killed_tracker_is_removed_after_its_tree(root: proc.Process) -> None:
    before = replace(root, start=root.start - 1)  # another process, which had the same PID
    leave_socket(before)
    assert list(keepers(root.pid)) == []
    assert was_killed(before)
    for found in keepers():
        if isinstance(found, tuple):
            found[1].close()
    assert not was_killed(before)


def test_socket_of_a_tracker_that_does_not_answer_is_kept(root: proc.Process) -> None:
    with listening(root), smaller_bounds(client, DESCRIBE_TIMEOUT_S=0.1):
        before = descriptors()
        assert [type(found) for found in keepers(root.pid)] == [HelperSilent]
        assert keeper_socket(root).exists()
        assert descriptors() == before


def test_listing_trackers_returns_what_each_tracker_answers(root: proc.Process) -> None:
    with listening(root) as listener, answering(listener, Answer(keeper=KEEPER)) as requests:
        ((found, held),) = (one for one in keepers(root.pid) if isinstance(one, tuple))
        held.close()
    assert found == KEEPER
    assert requests == [KeeperRequest("describe")]


def test_second_dump_of_a_tracked_tree_names_the_process_of_the_first(root: proc.Process) -> None:
    busy = Answer(busy=77)
    with listening(root) as listener, answering(listener, busy), session(root) as held, pytest.raises(DumpFailed) as no:
        held.begin()
    assert no.value.message == "process 77 is copying or dumping this tree"


def test_refusal_of_a_tracker_is_raised_with_its_message(root: proc.Process) -> None:
    no = Answer(refused="the tree is not frozen")
    with (
        listening(root) as listener,
        answering(listener, no),
        session(root) as held,
        pytest.raises(HostCannot) as raised,
    ):
        held.check_freeze()
    assert raised.value.message == "the tree is not frozen"


def test_tracker_that_closes_its_connection_counts_as_ended(root: proc.Process) -> None:
    with listening(root) as listener, answering(listener), session(root) as held:
        with pytest.raises(HostCannot, match=ENDED):
            held.describe()
        # The tracker may not read the request to end any more.
        held.end()


def test_tracker_of_another_version_is_reported(root: proc.Process) -> None:
    with (
        listening(root) as listener,
        answering(listener, b"?\n"),
        session(root) as held,
        pytest.raises(HelperSilent) as no,
    ):
        held.describe()
    assert no.value.message == f"its tracker (process {os.getpid()}) belongs to another version of crckpt"


def test_stopped_tracker_does_not_answer(root: proc.Process) -> None:
    """Here the tracker accepts no connection."""
    with listening(root), smaller_bounds(client, DESCRIBE_TIMEOUT_S=0.1):
        (found,) = keepers(root.pid)
        assert isinstance(found, HelperSilent)
        assert found.message == f"its tracker (process {os.getpid()}) does not answer"
        assert found.hint == f"end it: kill -KILL {os.getpid()}; this does no harm: the next dump is full"


def test_tracker_with_a_full_queue_does_not_answer(root: proc.Process) -> None:
    """Abandoned connections are still in the queue: without a limit, the next one would wait forever."""
    with listening(root, backlog=0), smaller_bounds(client, DESCRIBE_TIMEOUT_S=0.1), session(root):
        (found,) = keepers(root.pid)
    assert isinstance(found, HelperSilent)
    assert found.message == f"the tracker of PID {root.pid} does not answer"
    assert f"fuser -k {keeper_socket(root)} (" in found.hint


def test_process_that_listens_in_place_of_a_tracker_is_not_one(root: proc.Process) -> None:
    """The kernel records which process called listen(2)."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    with listening(root) as listener:
        os.seteuid(NOBODY)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        before = descriptors()
        assert find_session(root) is None
        assert descriptors() == before


def test_ending_a_tracker_that_has_ended_affects_no_other_process() -> None:
    """Another process may have the PID of the ended tracker."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, closing(KeeperSession(Channel(KIND, ours, free_pid()))) as held:
        held.retire()
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        with closing(KeeperSession(Channel(KIND, ours, process.pid))) as held:
            held.retire()
        assert process.poll() is None
        process.kill()
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, closing(KeeperSession(Channel(KIND, ours, process.pid))) as held:
            held.retire()
        assert process.wait(PATIENCE_S) == -15


def test_tracker_of_an_older_release_is_named_and_retired(root: proc.Process) -> None:
    """The older tracker sends lines over a socket that does not keep message boundaries."""
    reads = (
        "import os, sys, socket; s = socket.socket(fileno=int(sys.argv[1])); s.listen(); print(flush=True); s.accept()"
    )
    make_runtime_directory(path := keeper_socket(root))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        number = listener.fileno()
        words = (sys.executable, "-c", f"{reads}[0].recv(1)", str(number))
        with subprocess.Popen(words, pass_fds=(number,), stdout=subprocess.PIPE) as keeper:
            assert keeper.stdout is not None
            keeper.stdout.readline()
            with session(root) as held:
                with pytest.raises(HelperOutdated) as no:
                    held.describe()
                held.retire()
                assert keeper.wait(PATIENCE_S) == -15
    assert no.value.message == f"its tracker (process {keeper.pid}) belongs to another version of crckpt"
