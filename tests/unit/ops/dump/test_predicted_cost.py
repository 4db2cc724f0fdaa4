"""The predicted cost of a dump, from the speed of a trial."""

from __future__ import annotations

import pytest

from crckpt.ops.dump.forecast import CommitSpeed, DumpSpeed, Load, dump_speed, predict_cost, usual_ms

COMMIT = CommitSpeed(10, 5, 10_000, 20.0, 500, 0.25, 40, 2e-6, 0.25)
TREE = Load(memory=100_000_000, maps=1000, descriptors=100, threads=30, processes=20)


def test_predicted_cost_grows_with_the_size_of_the_tree() -> None:
    dump = DumpSpeed(byte_ms=1e-6, slowness=2.0, around_ms=40.0)
    found = predict_cost(TREE, dump, COMMIT, 4096)
    assert found.frozen_ms == pytest.approx(100 + 2 * usual_ms(TREE))
    assert found.dump_ms == pytest.approx(found.frozen_ms + 40)
    assert found.raw_bytes == 100_000_000 + 20 * 10_000
    files = 10 + 5 * 20 + 30
    assert found.commit_ms == pytest.approx(20 + 0.25 * files + 200)
    assert found.stored_bytes == 500 + 40 * files + 25_000_000
    assert found.sampled_bytes == 4096
    for more in (TREE._replace(**{name: 2 * amount}) for name, amount in TREE._asdict().items()):
        assert predict_cost(more, dump, COMMIT, 4096).frozen_ms > found.frozen_ms


def test_predicted_cost_of_a_tree_like_the_trial_is_that_of_the_trial() -> None:
    dump = dump_speed(TREE, memory_ms=150.0, frozen_ms=400.0, dump_ms=450.0)
    found = predict_cost(TREE, dump, COMMIT, 4096)
    assert found.frozen_ms == pytest.approx(400)
    assert found.dump_ms == pytest.approx(450)


def test_predicted_cost_of_memory_is_separate_from_other_costs() -> None:
    dump = dump_speed(TREE, memory_ms=150.0, frozen_ms=400.0, dump_ms=450.0)
    found = predict_cost(TREE._replace(memory=TREE.memory / 3), dump, COMMIT, 4096)
    assert found.frozen_ms == pytest.approx(300)
