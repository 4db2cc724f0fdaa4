"""Each process gets each batch of pages once, and its fork gets the missing ones."""

from __future__ import annotations

from crckpt.ops.lazy.address_space import Batches


def claim_all(batches: Batches) -> list[int]:
    """Claim all batches that are left."""
    found = []
    while (batch := batches.claim()) is not None:
        found.append(batch)
    return found


def test_each_batch_of_pages_is_claimed_once_in_order() -> None:
    batches = Batches(range(3))
    assert claim_all(batches) == [0, 1, 2]
    assert not batches.are_complete
    for batch in range(3):
        batches.finish(batch)
    assert batches.are_complete


def test_fork_lacks_claimed_and_remaining_batches() -> None:
    batches = Batches(range(4))
    first, second = batches.claim(), batches.claim()
    assert (first, second) == (0, 1)
    batches.finish(0)
    child = batches.copy()
    assert sorted(claim_all(child)) == [1, 2, 3]
    # A child of the child lacks the same batches.
    assert sorted(claim_all(child.copy())) == [1, 2, 3]


def test_fork_of_a_completely_filled_process_needs_no_more_batches() -> None:
    batches = Batches(range(1))
    batches.finish(claim_all(batches)[0])
    assert batches.copy().are_complete
