"""What a dump costs: speeds worked out from trials, and from them what a tree takes."""

from __future__ import annotations

import pytest

from crckpt.preflight.cost import CommitSpeed, DumpSpeed, ImageFiles, Load, Task, each_of, predicted, taken

EACH = Load(memory=1e-6, maps=0.02, descriptors=0.03, threads=0.2, processes=2.5)
PLAIN = Load(memory=1_000_000, maps=40, descriptors=3, threads=1, processes=1)
MORE = {
    "memory": PLAIN._replace(memory=25_000_000, maps=41),
    "maps": PLAIN._replace(maps=240, memory=1_800_000),
    "descriptors": PLAIN._replace(descriptors=203),
    "threads": PLAIN._replace(threads=17, maps=72, memory=1_200_000),
}


def tasks(each: Load = EACH) -> dict[str, Task]:
    """What trials would give where CRIU took exactly that."""
    return {name: Task(load, taken(each, load)) for name, load in {"plain": PLAIN, **MORE}.items()}


def test_what_each_thing_costs_is_found_in_what_the_trials_took() -> None:
    # That the trial of memory has a map more is not told apart from the memory.
    assert each_of(tasks()) == pytest.approx(EACH, rel=0.02)


def test_a_trial_that_was_quicker_than_the_plain_one_costs_nothing_and_gains_nothing() -> None:
    disturbed = tasks() | {"threads": Task(MORE["threads"], 0.0)}
    assert each_of(disturbed).threads == 0
    assert min(each_of(disturbed)) >= 0


def test_what_a_tree_takes_grows_with_all_that_it_has() -> None:
    dump = DumpSpeed(each=EACH, freeze_ms=3.0, around_ms=40.0)
    images = ImageFiles(files=10, process_files=5, process_bytes=10_000)
    commit = CommitSpeed(20.0, 500, 0.25, 40, 2e-6, 0.25)
    tree = Load(memory=100_000_000, maps=1000, descriptors=100, threads=30, processes=20)
    found = predicted(tree, dump, images, commit, 4096)
    assert found.frozen_ms == pytest.approx(3 + 100 + 20 + 3 + 6 + 50)
    assert found.dump_ms == pytest.approx(found.frozen_ms + 40)
    assert found.raw_bytes == 100_000_000 + 20 * 10_000
    files = 10 + 5 * 20 + 30
    assert found.commit_ms == pytest.approx(20 + 0.25 * files + 200)
    assert found.stored_bytes == 500 + 40 * files + 25_000_000
    assert found.sampled_bytes == 4096
