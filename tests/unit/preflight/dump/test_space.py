"""Shortages of disk space and memory are reported with numbers."""

from __future__ import annotations

import pytest

from crckpt.model import MEBIBYTE
from crckpt.preflight.dump.space import (
    OWN_MEMORY,
    FreeSpace,
    Growth,
    depends_on_growth,
    find_risks,
    find_shortages,
    predict_growth,
)

ENOUGH_SPACE = 1 << 40


def of(disk: int, store_disk: int | None = None, *, memory: int = ENOUGH_SPACE, in_memory: bool = False) -> FreeSpace:
    """So many free MiB for the images, and for the store, which is on the same disk unless given."""
    free = disk * MEBIBYTE
    store = free if store_disk is None else store_disk * MEBIBYTE
    return FreeSpace("/images", free, memory, in_memory, store_disk is None, store="/store", store_disk=store)


def growth(likely: int, least: int | None = None) -> Growth:
    return Growth(likely * MEBIBYTE, (likely if least is None else least) * MEBIBYTE)


@pytest.mark.parametrize(
    ("space", "grows", "short"),
    [
        (of(800), None, []),
        (of(799), None, ["disk"]),
        (of(1500), growth(900, 700), []),
        (of(1499), growth(900, 700), ["disk"]),
        (of(699), growth(900, 700), ["store-small"]),
        (of(800, 0), None, []),
        (of(799, ENOUGH_SPACE), None, ["staging-small"]),
        (of(800, 700), growth(900, 700), []),
        (of(800, 699), growth(900, 700), ["store-growth"]),
        (of(799, 699), growth(900, 700), ["staging-small", "store-growth"]),
        (of(ENOUGH_SPACE, ENOUGH_SPACE, memory=800 * MEBIBYTE, in_memory=True), None, ["memory"]),
        (of(ENOUGH_SPACE, ENOUGH_SPACE, memory=800 * MEBIBYTE + OWN_MEMORY, in_memory=True), None, []),
        (of(ENOUGH_SPACE, memory=800 * MEBIBYTE + OWN_MEMORY, in_memory=True), growth(1), ["memory"]),
        (of(ENOUGH_SPACE, memory=OWN_MEMORY - 1), None, ["memory"]),
    ],
)
def test_shortages_of_space_are_found(space: FreeSpace, grows: Growth | None, short: list[str]) -> None:
    assert [finding.key for finding in find_shortages(800 * MEBIBYTE, space, grows)] == short


@pytest.mark.parametrize(
    ("space", "grows", "risks"),
    [
        (of(1700), growth(900, 700), []),
        (of(1699), growth(900, 700), ["disk-tight"]),
        (of(800, 900), growth(900, 700), []),
        (of(800, 899), growth(900, 700), ["store-tight"]),
        (of(899), None, ["disk-tight"]),
        (of(900), None, []),
    ],
)
def test_space_that_may_not_suffice_is_reported_as_a_risk(
    space: FreeSpace, grows: Growth | None, risks: list[str]
) -> None:
    assert [finding.key for finding in find_risks(800 * MEBIBYTE, space, grows)] == risks


@pytest.mark.parametrize(
    ("space", "depends"), [(of(1700), False), (of(1600), True), (of(0, 900), False), (of(0, 800), True)]
)
def test_growth_is_measured_only_if_it_matters(space: FreeSpace, depends: bool) -> None:
    assert depends_on_growth(800 * MEBIBYTE, space) == depends


def test_sample_of_all_memory_is_trusted() -> None:
    prediction = predict_growth(images=1000, memory=1000, sample=1000, repeated=0, stored=400)
    assert (prediction.likely, prediction.least) == (400, 380)


def test_small_sample_of_memory_is_trusted_less() -> None:
    """The sample may have missed repeated and compressible pages."""
    memory, sample = 200 * MEBIBYTE, 32 * MEBIBYTE
    certain = predict_growth(memory, memory, sample, 0, sample)
    assert certain.likely == memory
    assert 0.85 * memory < certain.least < 0.95 * memory
    # In the sample's pairs it shows that each page is there three times.
    repeated = predict_growth(memory, memory, sample, 1200, sample)
    assert repeated.least < memory / 3
    half = predict_growth(memory, memory, sample, 0, sample // 2)
    assert 0.3 * memory < half.least < 0.42 * memory
    smaller = predict_growth(memory, memory, sample // 8, 0, sample // 8)
    assert smaller.least < certain.least


def test_checkpoint_grows_by_at_most_its_images() -> None:
    assert predict_growth(images=10, memory=1000, sample=100, repeated=0, stored=50).likely == 10
    assert predict_growth(images=10, memory=1000, sample=0, repeated=0, stored=0) == Growth(0, 0)


def test_shortage_of_space_is_reported_with_numbers() -> None:
    (disk,) = find_shortages(4000 * MEBIBYTE, of(600), growth(500))
    assert disk.what == (
        "a dump needs about 4,500 MiB (4,000 MiB of images until the checkpoint is stored, and 500 MiB that it adds to "
        "the store), but /images has only 600 MiB free"
    )
    assert "--staging" in disk.remedy
    (store,) = find_shortages(4000 * MEBIBYTE, of(4000, 499), growth(500))
    assert store.what == "the checkpoint adds about 500 MiB to the store, but /store has only 499 MiB free"
    assert "--staging" not in store.remedy


def test_store_on_a_read_only_mount_is_reported_instead_of_a_shortage() -> None:
    (found,) = find_shortages(
        MEBIBYTE, FreeSpace("/disk", 0, ENOUGH_SPACE, in_memory=False, shares_disk=True, read_only="/store")
    )
    assert (found.key, found.what) == (
        "store-read-only",
        "/store cannot be written (a read-only mount, or no permission)",
    )
