"""Which directory of a dump is on the full disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_disk import mounted_disk

from crckpt.ops.context import Context
from crckpt.ops.failures import find_full_directory


def test_store_is_the_full_directory_without_a_staging_directory(tmp_path: Path) -> None:
    assert find_full_directory(Context(tmp_path)).what == f"no space is left in {tmp_path}, the store"


@pytest.mark.parametrize(
    ("store", "staging", "written", "key"),
    [
        ("store", "staging", "staging/crckpt-1/images/x", "staging-full"),
        ("store", "staging", "store/tmp/1/log", "store-full"),
        ("store", "store/staging", "store/staging/x", "staging-full"),
        ("store", "store/staging", "store/tmp/1/log", "store-full"),
        ("disk/store", "disk", "disk/store/tmp/1/log", "store-full"),
        ("disk/store", "disk", "disk/crckpt-1/x", "staging-full"),
    ],
)
def test_written_file_identifies_the_full_directory(
    tmp_path: Path, store: str, staging: str, written: str, key: str
) -> None:
    for directory in (store, staging):
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    context = Context(tmp_path / store, staging=tmp_path / staging)
    assert find_full_directory(context, str(tmp_path / written)).key == key


@pytest.mark.parametrize("full", ["store", "staging"])
def test_store_or_staging_directory_with_less_space_is_reported_as_full(tmp_path: Path, full: str) -> None:
    for directory in ("store", "staging"):
        (tmp_path / directory).mkdir()
    context = Context(tmp_path / "store", staging=tmp_path / "staging")
    with mounted_disk(tmp_path / full, "64k"):
        found = find_full_directory(context)
    assert found.key == f"{full}-full"
    assert str(tmp_path / full) in found.what
