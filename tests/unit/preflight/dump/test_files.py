"""Deleted files of a tree, which CRIU saves or links."""

from __future__ import annotations

import os
import stat

import pytest
from dump_plans import DELETED_FILE, FILE, TWO_PROCESSES, keys, plan, with_files
from msgspec.structs import replace

from crckpt.host.proc import Descriptor
from crckpt.model import MEBIBYTE, DumpOptions
from crckpt.preflight.dump.files import count_deleted_bytes


def test_deleted_file_bytes_count_once() -> None:
    """Mapped files in memory count as memory."""
    taken = replace(DELETED_FILE, size=8 << 30, allocated=MEBIBYTE)
    observation = with_files(taken, replace(taken, fd=taken.fd + 1), replace(taken, target="/y (deleted)"), FILE)
    assert count_deleted_bytes(observation, lambda _: True) == 2 * MEBIBYTE
    mapped = replace(observation, deleted_maps=((taken.target, 5, 0),))
    assert count_deleted_bytes(mapped, lambda _: True) == MEBIBYTE
    assert count_deleted_bytes(mapped, lambda _: False) == 2 * MEBIBYTE
    assert count_deleted_bytes(with_files(replace(taken, links=1)), lambda _: True) == 0


def test_file_that_lost_a_name_is_restorable_in_some_cases() -> None:
    """CRIU finds the file by a link that it removes later, unless the tree ends or another name exists."""
    beside = with_files(replace(DELETED_FILE, links=1))
    elsewhere = replace(beside, unlinked=("/srv/gone",))
    found = plan(elsewhere)
    assert (found.options.link_remap, keys(found.warnings)) == (True, ["link-remap"])
    assert found.warnings[0].what.startswith("/srv/gone was removed but has a name in another directory")
    assert not found.is_restorable
    for other in (plan(elsewhere, stop=True), plan(beside)):
        assert (other.options.link_remap, other.warnings, other.is_restorable) == (True, (), True)
    assert plan(replace(TWO_PROCESSES, deleted_maps=(("/lib/x (deleted)", 5, 1),))).options.link_remap
    assert not plan(with_files(DELETED_FILE)).options.link_remap


def test_file_without_a_name_is_a_warning() -> None:
    unnamed = replace(DELETED_FILE, flags=os.O_RDWR | os.O_TMPFILE)
    assert keys(plan(with_files(unnamed)).warnings) == ["unnamed-file"]
    assert plan(with_files(replace(unnamed, links=1))).warnings == ()


def test_files_removed_by_a_reboot_are_listed() -> None:
    """Only the first few files are listed by path."""
    found = plan(replace(TWO_PROCESSES, volatile_files=tuple(f"/dev/shm/{number}" for number in range(7))))
    (finding,) = found.warnings
    assert finding.what.startswith("a reboot removes /dev/shm/0, /dev/shm/1, ")
    assert "/dev/shm/4 and 2 more (tmpfs)" in finding.what


@pytest.mark.parametrize(
    ("size", "limit"),
    [
        (0, 0),
        (MEBIBYTE // 2 - 1, 0),
        (MEBIBYTE // 2, MEBIBYTE),
        (MEBIBYTE, 2 * MEBIBYTE),
        (8 * MEBIBYTE, 11 * MEBIBYTE),
        (5 << 30, (5 << 30) * 5 // 4 + MEBIBYTE),
    ],
)
def test_deleted_files_fit_the_ghost_limit(size: int, limit: int) -> None:
    preallocated = with_files(replace(DELETED_FILE, size=size // 3, allocated=size))
    for observation in (
        with_files(replace(DELETED_FILE, size=size)),
        preallocated,
        replace(TWO_PROCESSES, deleted_maps=(("/x (deleted)", size, 0),)),
    ):
        found = plan(observation)
        assert found.options.ghost_limit == limit
        assert limit == 0 or limit > size
        assert [reason.option for reason in found.reasons] == ([f"--ghost-limit {limit}"] if limit else [])
        assert found.warnings == ()


@pytest.mark.parametrize(
    "other",
    [
        replace(DELETED_FILE, target="/memfd:big (deleted)", size=5 << 30),
        replace(DELETED_FILE, mode=stat.S_IFDIR, size=5 << 30),
        replace(DELETED_FILE, links=2, size=5 << 30),
        replace(FILE, size=5 << 30),
    ],
)
def test_files_that_are_not_deleted_need_no_ghost_limit(other: Descriptor) -> None:
    assert plan(with_files(other)).options.ghost_limit == 0


@pytest.mark.parametrize("name", ["/memfd:x (deleted)", "/dev/zero (deleted)", "/SYSV00000000 (deleted)"])
def test_shared_memory_does_not_count_as_a_ghost_file(name: str) -> None:
    assert plan(replace(TWO_PROCESSES, deleted_maps=((name, 5 << 30, 0), (name, 5, 1)))).options == DumpOptions()
