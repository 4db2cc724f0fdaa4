"""Files are read from front to back in bounded memory; no frame is unpacked needlessly."""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from image_sets import ImageSet, area, files_of, flip, open_store, packs, page, restore_files, store
from series import chain, series, start_program
from smaller_bounds import smaller_bounds

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE
from crckpt.store import Checkpoint, Repository, collect_garbage, open_reader, verify
from crckpt.store.format.pack import FRAME_PAGES, Pack
from crckpt.store.read import reader
from crckpt.store.read.contents import contents_of
from crckpt.store.workers import Workers


def image(repository: Repository, checkpoint: Checkpoint, name: str, late: int = 0) -> bytes:
    """The content of an image file, each part of it looked at when `late` bytes more have been given."""
    with open_reader(repository, checkpoint) as opened_reader:
        parts = opened_reader.image(name)
        assert parts is not None
        seen: list[bytes] = []
        waiting: deque[memoryview] = deque()
        for part in parts:
            waiting.append(part)
            while waiting and sum(map(len, waiting)) - len(waiting[0]) >= late:
                seen.append(bytes(waiting.popleft()))
        return b"".join([*seen, *map(bytes, waiting)])


@pytest.fixture
def unpack_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, int]]]:
    """How often each frame is unpacked. Small files are read like large ones."""
    counts: Counter[tuple[str, int]] = Counter()
    original = Pack.check

    def counted(self: Pack, frame: int, stored: memoryview) -> None:
        counts[self.digest, frame] += 1
        original(self, frame, stored)

    # The test counts the calls of `check`, because the result does not show how often a frame was unpacked.
    monkeypatch.setattr(Pack, "check", counted)
    with smaller_bounds(reader, _SMALL=0):
        yield counts


@settings(max_examples=examples(40))
@given(
    pages=st.lists(
        st.one_of(st.just(0), st.integers(1, 400), st.integers(1, 4000)), min_size=FRAME_PAGES * 3, max_size=1000
    ),
    frames=st.integers(3, 12),
    lent=st.integers(0, 5),
    worth_lending=st.sampled_from((1, 16)),
)
@example(
    pages=[*range(2, 32, 2), 0, *range(32, 62, 2), 0, 0, *range(62, 96, 2), *[0] * 200],
    frames=7,
    lent=4,
    worth_lending=16,
)
def test_pages_in_any_order_are_read_with_little_memory(
    tmp_path_factory: pytest.TempPathFactory, pages: list[int], frames: int, lent: int, worth_lending: int
) -> None:
    """Pages are needed in an order for which memory cannot keep all frames, while pipes still refer to some pages."""
    base = tmp_path_factory.mktemp("any")
    repository = open_store(base)
    scattered = sorted(pages)
    random.Random(0).shuffle(scattered)
    store(repository, base, ImageSet({"pagemap-1.img": [area(0, *scattered)]}))
    checkpoint = store(repository, base, ImageSet({"pagemap-1.img": [area(0, *pages)]}))
    with smaller_bounds(
        reader,
        _SMALL=0,
        _MOST_FRAMES=frames,
        _FEWEST_FRAMES=frames,
        _PAGES_IN_PART=16,
        _LENT_PAGES=lent,
        _PAGES_WORTH_LENDING=worth_lending,
        PIPE_SIZE=lent * PAGE_SIZE,
    ):
        assert image(repository, checkpoint, "pages-1.img", late=lent * PAGE_SIZE) == b"".join(map(page, pages))
        assert restore_files(repository, checkpoint, base) == files_of(base / "images-1")


class NoCopyMemory:
    """Replaces the memory in which scattered pages are copied together, and fails if it is used."""

    def __init__(self, most: int) -> None:
        """Accept any `most`, because nothing may be copied."""

    def next(self, count: int) -> Any:
        raise AssertionError(f"{count} pages are copied")


def test_pages_stored_together_are_passed_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 4000)
    memory = (program.directory / "pages-1.img").read_bytes()
    contiguous, scattered = series(repository, program, 2, 0.2)
    # A copy would have the same bytes, so the test removes the memory where a copy would be made.
    monkeypatch.setattr(reader, "_Ring", NoCopyMemory)
    assert image(repository, contiguous, "pages-1.img") == memory
    with pytest.raises(AssertionError, match="are copied"):
        image(repository, scattered, "pages-1.img")


def test_each_frame_is_unpacked_once(tmp_path: Path, unpack_counts: Counter[tuple[str, int]]) -> None:
    """The pages of the checkpoint are scattered over the packs of many others."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 4000)
    *_, last = series(repository, program, 30, 0.03)
    assert contents_of(repository, last).index.files
    unpack_counts.clear()
    content = image(repository, last, "pages-1.img")
    assert content == (program.directory / "pages-1.img").read_bytes()
    assert len({digest for digest, _ in unpack_counts}) > 10
    assert set(unpack_counts.values()) == {1}


def test_last_of_a_long_chain_is_read_like_a_single_one(
    tmp_path: Path, unpack_counts: Counter[tuple[str, int]]
) -> None:
    """1 % of 64 MiB is rewritten and dumped a hundred times. A checkpoint in the middle may have been removed."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 64 << 8)
    kept = list(chain(repository, program, examples(100), 0.01))
    first, middle, last = kept[0], kept[len(kept) // 2], kept[-1]
    memory = (program.directory / "pages-1.img").read_bytes()

    def read() -> int:
        assert contents_of(repository, last).index.files
        unpack_counts.clear()
        assert image(repository, last, "pages-1.img") == memory
        assert set(unpack_counts.values()) == {1}
        return len(unpack_counts)

    needed = len(memory) // PAGE_SIZE / FRAME_PAGES
    assert read() <= 1.25 * needed, "frames are unpacked for what little is wanted of them"
    written = sum(checkpoint.statistics.stored_bytes for checkpoint in kept)
    new = sum(checkpoint.statistics.new_bytes for checkpoint in kept)
    assert written <= 2 * new * first.statistics.stored_bytes / first.statistics.new_bytes
    repository.remove([middle.id])
    collect_garbage(repository)
    assert verify(repository).damages == ()
    assert read() <= 1.25 * needed
    repository.remove([checkpoint.id for checkpoint in kept[:-1] if checkpoint is not middle])
    collect_garbage(repository)
    assert verify(repository).damages == ()
    assert read() <= 1.25 * needed


class CountingWorkers(Workers):
    """Threads that count their tasks."""

    tasks = 0

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.tasks += 1
        return super().submit(work, *args, **kwargs)


def test_frames_of_many_packs_are_read_in_one_task(tmp_path: Path) -> None:
    """With scattered pages, one task per frame would cost more than its work."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 4000)
    *_, last = chain(repository, program, 30, 0.03)
    with repository.shared(), CountingWorkers(2) as pool:
        parts = reader.Reader(contents_of(repository, last), pool).image("pages-1.img")
        assert parts is not None
        assert b"".join(map(bytes, parts)) == (program.directory / "pages-1.img").read_bytes()
    assert len(last.packs) > 10
    assert 0 < pool.tasks <= sum(use.frames for use in last.packs) / 4


def test_frame_of_a_frequent_page_is_unpacked_only_once(
    tmp_path: Path, unpack_counts: Counter[tuple[str, int]]
) -> None:
    """A page that occurs everywhere stays in memory while other pages are read and dropped."""
    repository = open_store(tmp_path)
    often = [1, *(number for other in range(2, 2000) for number in (other, 1))]
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *often)]}))
    with smaller_bounds(reader, _MOST_FRAMES=8, _FEWEST_FRAMES=8):
        assert contents_of(repository, checkpoint).index.files
        unpack_counts.clear()
        assert image(repository, checkpoint, "pages-1.img") == b"".join(map(page, often))
    assert set(unpack_counts.values()) == {1}


def test_files_of_a_checkpoint_are_read_in_parallel(tmp_path: Path, unpack_counts: Counter[tuple[str, int]]) -> None:
    repository = open_store(tmp_path)
    maps = {f"pagemap-{number}.img": [area(0, *range(number * 100, number * 100 + 300))] for number in range(1, 9)}
    checkpoint = store(repository, tmp_path, ImageSet(maps, {"core.img": b"registers" * 1000}))
    expected = files_of(tmp_path / "images-0")
    found: dict[str, bytes] = {}
    with open_reader(repository, checkpoint) as opened_reader:

        def read(name: str) -> None:
            parts = opened_reader.image(name)
            assert parts is not None
            found[name] = b"".join(bytes(part) for part in parts)

        threads = [threading.Thread(target=read, args=(name,)) for name in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == expected
    assert unpack_counts


def test_zeros_of_a_large_file_become_holes(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    pages = [1, *[0] * 1000, 2, *[0] * 1000]
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *pages)]}))
    assert image(repository, checkpoint, "pages-1.img") == b"".join(map(page, pages))
    assert restore_files(repository, checkpoint, tmp_path) == files_of(tmp_path / "images-0")
    assert (tmp_path / "out-0/pages-1.img").stat().st_blocks * 512 < 10 * PAGE_SIZE


def test_damaged_frame_is_found_before_its_pages_are_returned(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    pages = range(1, 2000)
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *pages)]}))
    (pack,) = packs(repository)
    flip(pack, pack.stat().st_size // 2)
    content = b"".join(map(page, pages))
    given_before = b""
    with open_reader(Repository.open(repository.root), checkpoint) as opened_reader:
        parts = opened_reader.image("pages-1.img")
        assert parts is not None
        named = rf"{checkpoint.short_id} is damaged: pack {pack.stem[:12]}, frame \d+"
        with pytest.raises(IntegrityError, match=named):  # noqa: PT012 - what came before is to be seen
            for part in parts:
                given_before += part
    assert content.startswith(given_before)
    assert len(given_before) < len(content)
