"""Shortages of disk space and memory are reported with numbers."""

from __future__ import annotations

import pytest

from crckpt.model import MEBIBYTE
from crckpt.preflight.dump.space import OWN_MEMORY, FreeSpace, find_shortages

ENOUGH = 1 << 40


@pytest.mark.parametrize(
    ("images", "space", "short"),
    [
        (800, FreeSpace("/disk", 900 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True), []),
        (800, FreeSpace("/disk", 899 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True), ["disk"]),
        (800, FreeSpace("/disk", 800 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=False), []),
        (800, FreeSpace("/shm", ENOUGH, 800 * MEBIBYTE, in_memory=True, shares_disk=False), ["memory"]),
        (800, FreeSpace("/shm", ENOUGH, 800 * MEBIBYTE + OWN_MEMORY, in_memory=True, shares_disk=False), []),
        (800, FreeSpace("/disk", ENOUGH, OWN_MEMORY - 1, in_memory=False, shares_disk=True), ["memory"]),
        (800, FreeSpace("/disk", 100 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True), ["disk"]),
        (800, FreeSpace("/disk", 99 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True), ["store-small"]),
        (800, FreeSpace("/shm", 0, 0, in_memory=True, shares_disk=False), ["staging-small", "memory"]),
    ],
)
def test_shortages(images: int, space: FreeSpace, short: list[str]) -> None:
    assert [finding.key for finding in find_shortages(images * MEBIBYTE, space)] == short


@pytest.mark.parametrize(
    ("growth", "space", "short"),
    [
        (700, FreeSpace("/disk", 1500 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True), []),
        (700, FreeSpace("/disk", 1499 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True), ["disk"]),
        (700, FreeSpace("/disk", 699 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True), ["store-small"]),
        (700, FreeSpace("/shm", ENOUGH, ENOUGH, True, False, store="/disk", store_disk=700 * MEBIBYTE), []),
        (700, FreeSpace("/shm", ENOUGH, ENOUGH, True, False, store="/disk", store_disk=699 << 20), ["store-growth"]),
    ],
)
def test_the_growth_of_the_store_counts_if_it_was_tried(growth: int, space: FreeSpace, short: list[str]) -> None:
    assert [finding.key for finding in find_shortages(800 * MEBIBYTE, space, growth * MEBIBYTE)] == short


def test_shortages_have_numbers() -> None:
    (disk,) = find_shortages(
        4000 * MEBIBYTE, FreeSpace("/disk", 600 * MEBIBYTE, ENOUGH, in_memory=False, shares_disk=True)
    )
    assert disk.what == "the images of the tree need about 4,500 MiB, but /disk has only 600 MiB free"
    assert "--staging" in disk.remedy


def test_a_read_only_mount_is_reported_instead() -> None:
    (found,) = find_shortages(
        MEBIBYTE, FreeSpace("/disk", 0, ENOUGH, in_memory=False, shares_disk=True, read_only="/store")
    )
    assert (found.key, found.what) == ("store-read-only", "/store is on a read-only mount")
