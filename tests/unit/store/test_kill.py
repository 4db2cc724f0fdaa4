"""A process that is killed before any step of what it does to the store harms nothing, and gc removes what it left."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from changes import step_names
from effort import some
from image_sets import described, restore_files
from stages import ACTS, LOCK, NEXT, REPAIR, Act, Stage, check, memory_directory, spoil
from writer import Order, Writers

import crckpt
from crckpt.store import Repository, collect_garbage, ingest, repair, verify
from crckpt.store.backend.flock import holders

CREATE = Act("create", "create")
RESTORE = Act("restore", "materialise", ("job", "/out"))
NOT_TAKEN = {
    # These steps remove the files of a failed write, which only happens in tests with a full disk.
    *(
        "damage.unlink",
        "description.unlink",
        "fingerprint-key.unlink",
        "manifest-directory.unlink",
        "manifest-directory.rmdir",
    ),
    # A transaction has no directories in directories.
    "transaction.rename",
    # A mark is empty.
    "restored.write",
    # A manifest that is replaced was damaged.
    "manifest.unlink",
    # Every store has the directories of its cache.
    *(
        f"{what}-directory.{verb}"
        for what in ("damage", "fingerprints", "fingerprint-key")
        for verb in ("mkdir", "sync-directory")
    ),
}


def _steps(stage: Stage, forked: Writers, act: Act) -> Counter[str]:
    with stage.copy() as copy:
        (copy.base / "out").mkdir()
        if act == REPAIR:
            spoil(copy)
        order = Order(act.act, str(copy.root), copy.arguments(act))
        return Counter(entry.name for entry in forked.record_steps(order, copy.base / "log"))


def _moments(steps_taken: Counter[str]) -> Sequence[str]:
    """Each step, as CRCKPT_KILL_AT says it: the first two times and the last one that it is taken."""
    often = [(name, number, times) for name, times in steps_taken.items() for number in sorted({1, 2, times})]
    return some([f"{name}:{number}" for name, number, times in often if number <= times])


@pytest.mark.parametrize("act", [*ACTS, LOCK], ids=lambda act: act.name)
def test_command_killed_before_any_step_leaves_a_valid_store(act: Act, stage: Stage, forked_writers: Writers) -> None:
    before = Repository.open(stage.root).checkpoints()
    for moment in _moments(_steps(stage, forked_writers, act)):
        with stage.copy() as copy:
            order = Order(act.act, str(copy.root), copy.arguments(act), kill_at=moment)
            assert forked_writers.status(order) == -signal.SIGKILL, moment
            repository = Repository.open(copy.root)
            assert holders(copy.root) == ()
            check(copy.root, before, act)
            again = ingest(repository, copy.base / "sets/next", described())
            assert restore_files(repository, again, copy.base)["core-100.img"] == NEXT.files["core-100.img"]
            assert verify(repository).damages == ()
            assert collect_garbage(repository).leftovers == ()


def test_creation_of_a_store_killed_before_any_step_can_be_repeated(stage: Stage, forked_writers: Writers) -> None:
    def order(base: Path, moment: str = "") -> Order:
        return Order("create", str(base / "above/store"), kill_at=moment)

    with memory_directory() as base:
        steps_taken = Counter(entry.name for entry in forked_writers.record_steps(order(base), base / "log"))
    for name, times in steps_taken.items():
        for number in range(1, times + 1):
            with memory_directory() as base:
                assert forked_writers.status(order(base, f"{name}:{number}")) == -signal.SIGKILL
                repository = Repository.open(base / "above/store", create=True)
                checkpoint = ingest(repository, stage.base / "sets/next", described())
                collect_garbage(repository)
                check(repository.root, [checkpoint], CREATE)


def test_command_killed_while_images_are_restored_leaves_a_valid_store(stage: Stage, forked_writers: Writers) -> None:
    before = Repository.open(stage.root).checkpoints()
    for moment in _moments(_steps(stage, forked_writers, RESTORE)):
        with stage.copy() as copy:
            (copy.base / "out").mkdir()
            order = Order(RESTORE.act, str(copy.root), copy.arguments(RESTORE), kill_at=moment)
            assert forked_writers.status(order) == -signal.SIGKILL
            check(copy.root, before, RESTORE)


def test_repair_killed_before_any_step_leaves_a_valid_store(stage: Stage, forked_writers: Writers) -> None:
    before = Repository.open(stage.root).checkpoints()
    # In a copy of its own: a verification notes what it finds.
    with stage.copy() as copy:
        spoil(copy)
        lost = set(verify(Repository.open(copy.root)).lost)
    for moment in _moments(_steps(stage, forked_writers, REPAIR)):
        with stage.copy() as copy:
            spoil(copy)
            order = Order(REPAIR.act, str(copy.root), copy.arguments(REPAIR), kill_at=moment)
            assert forked_writers.status(order) == -signal.SIGKILL, moment
            assert set(verify(Repository.open(copy.root)).lost) <= lost
            intact_copy = Repository.open(copy.base / "whole")
            assert repair(Repository.open(copy.root), source=intact_copy).now.damages == ()
            check(copy.root, before, REPAIR)


def test_every_step_of_the_store_is_tested_with_a_kill(stage: Stage, forked_writers: Writers) -> None:
    """The code has no step that the tests above do not interrupt."""
    steps_taken: set[str] = set()
    for act in (*ACTS, LOCK, RESTORE, REPAIR):
        steps_taken |= set(_steps(stage, forked_writers, act))
    with memory_directory() as base:
        steps_taken |= {
            entry.name
            for entry in forked_writers.record_steps(Order("create", str(base / "above/store")), base / "log")
        }
    code = Path(crckpt.__file__).parent
    sources = [path.read_text() for path in (code / "store").rglob("*.py")]
    assert sorted(step_names((code / "host/disk/files.py").read_text(), sources) - NOT_TAKEN) == sorted(steps_taken)
