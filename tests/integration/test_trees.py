"""Real trees, checkpointed and brought back through the command line, and checked from the inside and the outside."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cases import CASES, TRAINING
from command import Crckpt
from kind_tests import TESTS
from trees import Case, Tree, started

from crckpt.ops.context import Context
from crckpt.ops.dump.examine import examine
from crckpt.ops.dump.request import DumpRequest
from crckpt.preflight.dump.tested_kinds import find_kinds
from crckpt.store import Repository

CASES_DUMPED_AGAIN = ("family", "tcp-pair", "maps", "deleted-files")


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def tree(request: pytest.FixtureRequest) -> Iterator[Tree]:
    """A ready tree of each kind in turn."""
    case: Case = request.param
    if case.missing():
        pytest.skip(f"not installed: {', '.join(case.missing())}")
    with started(case) as tree:
        yield tree


def test_tree_continues_after_a_dump_without_stop(tree: Tree, crckpt: Crckpt) -> None:
    """A dump without --stop only pauses the tree, in a new store and in one that has checkpoints."""
    facts = tree.facts()
    for _ in range(2):
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), "job", *_tcp(tree.case))
        tree.wait_growth(before)
    _has_lost_nothing(tree, facts)


def test_stopped_tree_is_restored(tree: Tree, crckpt: Crckpt) -> None:
    """Counters, memory and the state that the case describes are as they were."""
    Repository.open(crckpt.store, create=True)
    tree.case.probe(tree.workdir)
    before, facts = tree.counters(), tree.facts()
    kinds = _kinds(tree)
    assert {kind for kind, test in TESTS.items() if f"[{tree.case.name}]" in test} <= kinds
    _stop_and_restore(tree, crckpt)
    tree.wait_growth(before)
    assert _kinds(tree) >= kinds
    _has_lost_nothing(tree, facts)


@pytest.mark.parametrize(
    "tree", [case for case in CASES if case.name in CASES_DUMPED_AGAIN], indirect=True, ids=CASES_DUMPED_AGAIN
)
def test_restored_tree_can_be_dumped_again(tree: Tree, crckpt: Crckpt) -> None:
    """The second checkpoint of a tree that crckpt itself has started is worth as much as the first."""
    facts = tree.facts()
    for _ in range(2):
        before = tree.counters()
        _stop_and_restore(tree, crckpt)
        tree.wait_growth(before)
    _has_lost_nothing(tree, facts)


def test_training_ends_with_the_same_weights(crckpt: Crckpt) -> None:
    """Two checkpoints and a restore in the middle change no bit of what a training computes."""
    with started(TRAINING) as undisturbed, started(TRAINING) as tree:
        crckpt.run("dump", str(tree.pid), "training")
        before = tree.counters()
        _stop_and_restore(tree, crckpt, "training")
        assert "weights" not in tree.facts()[""], "the training was over before its checkpoint"
        tree.wait_growth(before)
        tree.wait_verified()
        undisturbed.wait_verified()
        assert tree.facts() == undisturbed.facts()


def _stop_and_restore(tree: Tree, crckpt: Crckpt, job: str = "job") -> None:
    crckpt.run("dump", str(tree.pid), job, "--stop", *_tcp(tree.case))
    tree.wait_gone()
    crckpt.run("restore", job, "--detach", *_tcp(tree.case))


def _kinds(tree: Tree) -> set[str]:
    return set(find_kinds(examine(DumpRequest(str(tree.pid)), Context(Path("/nowhere"))).observed))


def _tcp(case: Case) -> tuple[str, ...]:
    return ("--tcp", case.tcp) if case.tcp else ()


def _has_lost_nothing(tree: Tree, facts: Mapping[str, Mapping[str, object]]) -> None:
    tree.case.probe(tree.workdir)
    tree.wait_verified()
    kept = {name: {key: found[key] for key in facts[name]} for name, found in tree.facts().items()}
    assert kept == facts
