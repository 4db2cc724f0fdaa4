"""CRIU starts before crckpt examines the tree, and changes nothing in it before it is told to continue."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest
from cases import CASES
from command import Crckpt
from dump_moments import (
    ENDS_WITHIN_S,
    MOMENTS,
    assert_runs_on,
    checkpoints,
    kill_below,
    orphans_of,
    wait_ended,
    wait_for_moment,
)
from trees import Tree, started, wait_for

from crckpt.errors import DumpFailed, PreflightRefused
from crckpt.store import Repository


def _case(name: str) -> Iterator[Tree]:
    with started(next(case for case in CASES if case.name == name)) as tree:
        yield tree


@pytest.fixture
def counter() -> Iterator[Tree]:
    """A tree that needs no option of CRIU."""
    yield from _case("counter")


@pytest.fixture
def connected_tree() -> Iterator[Tree]:
    """A tree with a connection."""
    yield from _case("tcp-pair")


@pytest.fixture
def tree_with_a_lock() -> Iterator[Tree]:
    """A tree that needs an option of CRIU that crckpt does not know at the start."""
    yield from _case("locks")


@pytest.fixture(autouse=True)
def store(crckpt: Crckpt) -> None:
    """A store, because CRIU starts later without one."""
    Repository.open(crckpt.store, create=True)


@pytest.mark.parametrize("words", [(), ("--stop",)], ids=("goes on", "stop"))
def test_killed_crckpt_ends_the_waiting_criu(crckpt: Crckpt, counter: Tree, words: tuple[str, ...]) -> None:
    """CRIU ends before it has changed anything in the tree."""
    dump = crckpt.start("dump", str(counter.pid), "job", *words, CRCKPT_STOP_AT="hold.commit")
    wait_for(lambda: _waits(dump.pid), ENDS_WITHIN_S, "CRIU to wait")
    assert_runs_on(counter, frozenset())
    left = orphans_of(dump)
    assert dump.returncode == -signal.SIGKILL
    assert left
    wait_ended(left)
    assert_runs_on(counter, frozenset())
    crckpt.run("gc")
    assert not list(crckpt.store.glob("tmp/*"))
    assert checkpoints(crckpt) == ()


def test_tree_is_not_frozen_if_its_dump_is_refused(crckpt: Crckpt, connected_tree: Tree) -> None:
    """The tree has a connection, and no option says whether to keep or close it."""
    dump = crckpt.start("dump", str(connected_tree.pid), "job", "--stop")
    assert not wait_for_moment(MOMENTS["frozen"], crckpt.store, connected_tree, dump)
    out, error = dump.communicate()
    assert (dump.returncode, out) == (PreflightRefused.exit_code, "")
    assert "--tcp" in error
    assert not list(crckpt.store.glob("tmp/*"))
    assert_runs_on(connected_tree, frozenset())


def test_criu_is_started_again_if_the_tree_needs_an_option_that_it_lacks(
    crckpt: Crckpt, tree_with_a_lock: Tree
) -> None:
    """A second CRIU starts with the option; the first leaves nothing, and the tree is frozen once."""
    output = crckpt.run("dump", str(tree_with_a_lock.pid), "job", "--verbose").out
    assert "--file-locks" in output
    crckpt.run("dump", str(tree_with_a_lock.pid), "job", "--stop")
    tree_with_a_lock.wait_gone()
    assert not list(crckpt.store.glob("tmp/*"))
    crckpt.run("restore", "job", "--detach")
    tree_with_a_lock.case.probe(tree_with_a_lock.workdir)


def test_unexpected_end_of_criu_before_the_freeze_is_explained(crckpt: Crckpt, counter: Tree) -> None:
    """CRIU is ended while it waits."""
    dump = crckpt.start("dump", str(counter.pid), "job", CRCKPT_STOP_AT="hold.commit")
    wait_for(lambda: _waits(dump.pid), ENDS_WITHIN_S, "CRIU to wait")
    kill_below(dump.pid)
    dump.send_signal(signal.SIGCONT)
    _, error = dump.communicate()
    assert dump.returncode == DumpFailed.exit_code
    assert "no checkpoint was made; the tree keeps running" in error
    assert_runs_on(counter, frozenset())


def _waits(pid: int) -> bool:
    """Return whether crckpt has stopped itself, and CRIU waits in its script."""
    crckpt = psutil.Process(pid)
    return crckpt.status() == psutil.STATUS_STOPPED and any(
        child.name() == "hold-action" for child in crckpt.children(recursive=True)
    )
