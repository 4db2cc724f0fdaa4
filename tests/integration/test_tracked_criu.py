"""An unmodified CRIU's pre-dump and incremental dumps on the tracker that works here: what it writes and restores."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from oracle import find_criu
from rounds import FEW_PAGES, PAGE, PAGES, Target

from crckpt.host import proc
from crckpt.images.pagemap import IN_PARENT, PRESENT, PageMap, read_pagemap
from crckpt.tracking.choose_tracker import choose_tracker
from crckpt.tracking.dump_basis import DumpBasis, RoundBase
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.tracker import Tracker
from crckpt.tracking.uffd_wp import UffdWp


def chosen(target: Target, tmp_path: Path) -> Tracker:
    root = proc.read_process(target.pid)
    assert root is not None
    tracker, why = choose_tracker(root, find_criu(), tmp_path / "tracked")
    if tracker is None:
        pytest.skip(why)
    return tracker


def ran(words: tuple[str, ...], images: Path, more: Mapping[str, str], status: int = 0) -> None:
    """Run CRIU to its end."""
    common = ("--images-dir", str(images), "--log-file", "log", "-v3", "--manage-cgroups=ignore")
    argv = [str(find_criu()), *words, *common]
    # Not our own LD_PRELOAD or TMPDIR; CRIU's children inherit what it was started with.
    environment = {"PATH": os.environ["PATH"], **more}
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == status, f"{result.stderr}\n{(images / 'log').read_text()[-2000:]}"


def dumped(
    target: Target, tracker: Tracker, images: Path, *words: str, parent: Path | None = None, name: str | None = None
) -> DumpBasis:
    """Make one dump with CRIU and the tracker."""
    images.mkdir()
    began = tracker.begin()
    after = ("--prev-images-dir", f"../{parent.name}") if parent else ()
    tracking = ("--track-mem",) if began.tracks else ()
    more = dict(tracker.environment(find_criu()))
    if name is not None:
        more[name] = more.pop("CRCKPT_CRIU_PRELOAD")
    ran((*words, "--tree", str(target.pid), *tracking, *after), images, more)
    tracker.check_freeze()
    tracker.commit(RoundBase(images))
    return began


def pagemap(images: Path, pid: int) -> PageMap:
    return read_pagemap((images / f"pagemap-{pid}.img").read_bytes())


def pages(images: Path, pid: int, flag: int, place: int, count: int = PAGES) -> set[int]:
    """Which of these pages the images hold (PRESENT), or leave to their parent (IN_PARENT)."""
    return {
        (entry.vaddr - place) // PAGE + page
        for entry in pagemap(images, pid).entries
        if entry.flags & flag
        for page in range(entry.pages)
        if place <= entry.vaddr + page * PAGE < place + count * PAGE
    }


def restored(target: Target, images: Path, number: int | None = None) -> str:
    """Restore the program, which had got `number` requests, and return the checksum of its memory."""
    target.end()
    target.number = target.number if number is None else number
    ran(("restore", "--restore-detached", "--restore-sibling"), images, {})
    return target.look()


@pytest.mark.parametrize("way", [None, "LD_PRELOAD"])
def test_second_dump_contains_only_changed_pages(target: Target, tmp_path: Path, way: str | None) -> None:
    """The library is loaded as for the CRIU that is found here, and by LD_PRELOAD as for the CRIU of a distribution."""
    tracker = chosen(target, tmp_path)
    if way and not tracker.environment(find_criu()).get("CRCKPT_CRIU_PRELOAD"):
        tracker.close()
        pytest.skip("this CRIU gets the library by LD_PRELOAD anyway")
    first, second = tmp_path / "first", tmp_path / "second"
    assert dumped(target, tracker, first, "pre-dump", name=way).base is None
    assert pages(first, target.pid, PRESENT, target.area) == set(range(PAGES))
    checksum = target.write()
    assert dumped(target, tracker, second, "dump", "--leave-running", parent=first, name=way).base == RoundBase(first)
    assert pages(second, target.pid, PRESENT, target.area) == target.written()
    assert pages(second, target.pid, IN_PARENT, target.area) == set(range(PAGES)) - target.written()
    assert pagemap(second, target.pid).present <= len(target.written()) + FEW_PAGES
    tracker.close()
    assert restored(target, second) == checksum


def test_chain_of_rounds_restores_the_memory_of_the_program(target: Target, tmp_path: Path) -> None:
    """Maps are created, moved and dropped between the rounds, and some maps contain only few pages."""
    tracker = chosen(target, tmp_path)
    parent, checksum = None, ""
    for number in range(6):
        images = tmp_path / f"round-{number}"
        words = ("dump", "--leave-running") if number > 3 else ("pre-dump",)
        began = dumped(target, tracker, images, *words, parent=parent)
        assert began.base == (RoundBase(parent) if parent else None)
        if parent:
            assert pages(images, target.pid, PRESENT, target.area) == target.written()
            touched = set(range(0, 64, 7))
            assert pages(images, target.pid, PRESENT, target.sparse, 64) == touched, "and no page that holds nothing"
            assert pages(images, target.pid, IN_PARENT, target.sparse, 64) == set()
        parent = images
        if number < 5:
            checksum = target.write()
    tracker.close()
    assert parent is not None
    assert restored(target, parent) == checksum


def test_chain_of_rounds_can_be_restored_in_the_middle_and_continued(target: Target, tmp_path: Path) -> None:
    tracker = chosen(target, tmp_path)
    sums = []
    for number in range(3):
        images = tmp_path / f"round-{number}"
        parent = tmp_path / f"round-{number - 1}" if number else None
        dumped(target, tracker, images, "dump", "--leave-running", parent=parent)
        sums.append(target.report()[0])
        target.write()
    tracker.close()
    assert restored(target, tmp_path / "round-1", number=1) == sums[1]


def test_second_dump_is_full_if_the_tracker_has_ended(target: Target, tmp_path: Path) -> None:
    """No memory is registered: every page counts as written, and none is lost."""
    tracker = chosen(target, tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    environment = tracker.environment(find_criu())
    if tracker.name == SoftDirty.name:
        tracker.close()
        pytest.skip("the kernel's own bits need no tracker")
    dumped(target, tracker, first, "dump", "--leave-running")
    tracker.close()
    checksum = target.write()
    second.mkdir()
    words = ("dump", "--leave-running", "--tree", str(target.pid), "--track-mem", "--prev-images-dir", "../first")
    ran(words, second, environment)
    assert pages(second, target.pid, PRESENT, target.area) == set(range(PAGES))
    assert restored(target, second) == checksum


def test_dump_after_one_that_failed_after_the_reset_is_full(target: Target, tmp_path: Path) -> None:
    """An action script fails at post-dump, so CRIU resumes the tree although the bits have been reset."""
    tracker = chosen(target, tmp_path)
    first, failed, third = tmp_path / "first", tmp_path / "failed", tmp_path / "third"
    dumped(target, tracker, first, "dump", "--leave-running")
    target.write()
    script = tmp_path / "script"
    script.write_text('#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]\n')
    script.chmod(0o755)
    failed.mkdir()
    assert tracker.begin().base == RoundBase(tmp_path / "first")
    words = ("dump", "--leave-running", "--tree", str(target.pid), "--track-mem", "--prev-images-dir", "../first")
    ran((*words, "--action-script", str(script)), failed, tracker.environment(find_criu()), status=255)
    assert pages(failed, target.pid, PRESENT, target.area) == target.written(), "the bits were reset"
    method = UffdWp() if tracker.name == UffdWp.name else SoftDirty()
    rows = method.find_written(target.pid)
    assert not [start for start, _ in rows.tolist() if target.area <= start < target.area + PAGES * PAGE], (
        "and are lost"
    )
    began = dumped(target, tracker, third, "dump", "--leave-running")
    assert (began.base, began.why) == (None, "the tracker did not see the end of the last dump or round")
    assert pages(third, target.pid, PRESENT, target.area) == set(range(PAGES))
    checksum = target.report()[0]
    tracker.close()
    assert restored(target, third) == checksum


def test_criu_reads_only_the_line_vmflags_of_smaps() -> None:
    """crckpt's library gives CRIU no other lines of smaps (smaps.c). A CRIU that needs more would fail."""
    found = find_criu()
    (program,) = (path for path in (found, *found.parent.rglob("sbin/criu")) if path.read_bytes()[:4] == b"\x7fELF")
    names = {line.split(":")[0] for line in Path("/proc/self/smaps").read_text().splitlines() if line[0].isupper()}
    assert {name for name in names if f"\0{name}:".encode() in program.read_bytes()} == {"VmFlags"}
