"""CRIU's progress is read from its images."""

from __future__ import annotations

import threading
from pathlib import Path

from crckpt.ops.context import ignore_progress
from crckpt.ops.dump.plan import copying_reported

MEMORY = 1 << 20


def test_copied_bytes_are_reported_with_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    is_complete = threading.Event()

    def note(done: int, total: int) -> None:
        seen.append((done, total))
        if done == total:
            is_complete.set()

    (tmp_path / "core-1.img").write_bytes(bytes(MEMORY))
    with copying_reported(tmp_path, MEMORY, note) as end:
        (tmp_path / "pages-1.img").write_bytes(bytes(MEMORY // 2))
        (tmp_path / "pages-2.img").write_bytes(bytes(MEMORY))
        assert is_complete.wait(60)
        end()
        reported = len(seen)
    assert seen[0] == (0, MEMORY)
    assert all(total == MEMORY for _, total in seen)
    assert len(seen) == reported, "nothing is reported after the end"


def test_copy_progress_needs_no_thread_if_nobody_reads_it(tmp_path: Path) -> None:
    before = threading.active_count()
    with copying_reported(tmp_path, MEMORY, ignore_progress):
        assert threading.active_count() == before


def test_copy_progress_ignores_a_missing_directory(tmp_path: Path) -> None:
    seen: list[int] = []
    twice = threading.Event()

    def note(done: int, _total: int) -> None:
        seen.append(done)
        if len(seen) > 1:
            twice.set()

    with copying_reported(tmp_path / "none", MEMORY, note):
        assert twice.wait(60)
    assert set(seen) == {0}
