"""Memory of a tree that is filled before it runs, and while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from crckpt.images.mm import Vma
from crckpt.images.private_memory import MemoryRange
from crckpt.images.tree import ImageTree
from crckpt.model import PAGE_SIZE, PackId
from crckpt.ops.lazy.plan import ProcessPlan, choose_hot_packs, make_plans
from crckpt.store.format.manifest import PackUse

START = 0x7F00_0000_0000
MIB = 1 << 20


@dataclass
class CheckpointStub:
    """A value that has the packs of a checkpoint and nothing else."""

    packs: tuple[PackUse, ...]


def plan(tree: ImageTree, *sizes: int) -> tuple[ProcessPlan, ...]:
    """Plan a process with ordinary mappings of these sizes, with gaps between them."""
    root = tree.root
    assert root.memory is not None
    starts = [START + sum(sizes[:at]) + at * PAGE_SIZE for at in range(len(sizes))]
    vmas = tuple(
        Vma(start, start + size, 0, 0, 3, 0x22, 0, wants_huge_pages=False)
        for start, size in zip(starts, sizes, strict=True)
    )
    tree_of_root = replace(tree, processes=(replace(root, memory=replace(root.memory, vmas=vmas)),))
    return make_plans(tree_of_root, {root.pid: tuple(MemoryRange(vma.start, vma.end, False) for vma in vmas)})


def test_only_large_mappings_are_filled_while_the_tree_runs(tree: ImageTree) -> None:
    (found,) = plan(tree, MIB, 100 * MIB, 2 * MIB, 3 * MIB)
    large = (START + MIB + PAGE_SIZE, START + 101 * MIB + PAGE_SIZE)
    assert (found.ranges, found.mappings) == ((large,), (large,))


def test_small_tree_is_filled_before_it_runs(tree: ImageTree) -> None:
    assert plan(tree, MIB, 2 * MIB) == ()


@given(st.lists(st.integers(1, 6 * MIB // PAGE_SIZE), min_size=1, max_size=30))
def test_little_memory_is_filled_before_the_tree_runs(tree: ImageTree, pages: list[int]) -> None:
    """At most 8 MiB are filled, and not only the larger one of two mappings."""
    sizes = [count * PAGE_SIZE for count in pages]
    filled_later = [end - start for each in plan(tree, *sizes) for start, end in each.ranges]
    filled_before = sorted(sizes)[: len(sizes) - len(filled_later)]
    assert sorted(sizes) == sorted([*filled_before, *filled_later])
    assert sum(filled_before) <= 8 * MIB
    assert max(filled_before, default=0) < min(filled_later, default=1 << 60)


def test_new_packs_are_filled_first_within_the_time() -> None:
    packs = tuple(
        PackUse(PackId(digit * 64), 1, pages) for digit, pages in (("1", 9), ("2", 1 << 14), ("3", 5), ("4", 7))
    )
    checkpoint = CheckpointStub(packs)
    assert choose_hot_packs(checkpoint, ("3" * 64, "4" * 64)) == {"3" * 64, "4" * 64}  # type: ignore[arg-type]
    assert choose_hot_packs(checkpoint, ("1" * 64, "2" * 64, "4" * 64)) == {"1" * 64, "4" * 64}  # type: ignore[arg-type]
