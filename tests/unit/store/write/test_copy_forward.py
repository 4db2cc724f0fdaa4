"""Long series stay cheap: what they write, what they leave on disk, what a restore of the last one reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from image_sets import ImageSet, area, described, files_of, open_store, pack_path, packs, restore_files, store
from series import cost, disk, series, some_pages, start_program
from smaller_bounds import smaller_bounds

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE
from crckpt.store import collect_garbage, ingest, verify
from crckpt.store.format.extents import Mask, Positions
from crckpt.store.write import copy_forward
from crckpt.store.write.copy_forward import (
    MOST_PACKS,
    OF_ALL,
    PER_NEW,
    PER_NEW_OF_MUCH,
    USED_BELOW,
    choose_pages,
)
from crckpt.store.write.new_packs import pages_in_a_pack


def test_hundred_checkpoints_with_random_rewrites_stay_small(tmp_path: Path) -> None:
    """1 % of 64 MiB is rewritten each time. Bytes written, read by the last restore, and left after gc are limited."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 64 << 8)
    kept = list(series(repository, program, 100, 0.01))
    first, last = cost(repository, kept[0]), cost(repository, kept[-1])
    one = kept[0].statistics.stored_bytes
    new = sum(checkpoint.statistics.new_bytes for checkpoint in kept) * one / kept[0].statistics.new_bytes
    written = sum(checkpoint.statistics.stored_bytes for checkpoint in kept)
    assert new < 2.05 * one, "only what was rewritten counts as new"
    assert written <= 2 * new
    assert last.raw <= 1.2 * first.raw
    assert last.stored <= 1.22 * first.stored
    assert last.frames <= 1.25 * first.frames, "frames at the ends of packs are smaller"
    assert restore_files(repository, kept[-1], tmp_path) == files_of(program.directory)
    repository.remove([checkpoint.id for checkpoint in kept[:-5]])
    collect_garbage(repository)
    assert disk(repository) <= 1.6 * one
    assert verify(repository).damages == ()
    assert restore_files(repository, kept[-1], tmp_path) == files_of(program.directory)


def test_ten_checkpoints_under_light_load_copy_nothing(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    kept = list(series(repository, start_program(tmp_path / "images", 2000), 10, 0.02))
    assert [checkpoint.statistics.copied_bytes for checkpoint in kept] == [0] * 10


def test_little_used_pack_is_not_copied_among_many_used_ones(tmp_path: Path) -> None:
    """If a program writes to one place again and again, old packs become unused by themselves."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 4 * pages_in_a_pack(0))
    first = last = ingest(repository, program.directory, described())
    tenth = pages_in_a_pack(0) // 10
    for number in range(9):
        with (program.directory / "pages-1.img").open("r+b") as file:
            file.seek(number % 5 * tenth * PAGE_SIZE)
            file.write(b"".join(some_pages(program.rng, tenth)))
        last = ingest(repository, program.directory, described())
        assert last.statistics.copied_bytes == 0
    assert cost(repository, last).raw < 1.2 * cost(repository, first).raw


def test_no_checkpoint_writes_much_more_than_its_new_pages(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    kept = list(series(repository, start_program(tmp_path / "images", 2000), 40, 0.05))
    copied = [checkpoint.statistics.copied_bytes for checkpoint in kept]
    assert any(copied)
    assert all(part <= PER_NEW * checkpoint.statistics.new_bytes for part, checkpoint in zip(copied, kept, strict=True))


def test_series_of_many_new_pages_writes_little_more(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first, *kept = series(repository, start_program(tmp_path / "images", 2000), 20, 0.2)
    copied = [checkpoint.statistics.copied_bytes for checkpoint in kept]
    assert any(copied)
    new = [checkpoint.statistics.new_bytes for checkpoint in kept]
    assert all(some <= PER_NEW_OF_MUCH * all_ for some, all_ in zip(copied, new, strict=True))
    assert cost(repository, kept[-1]).raw <= 1.7 * cost(repository, first).raw


def test_checkpoint_without_a_copy_budget_copies_nothing(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 2000)
    before = list(series(repository, program, 10, 0.2))
    assert before[-1].statistics.copied_bytes > 0
    for _ in range(2):
        with (program.directory / "pages-1.img").open("r+b") as file:
            file.write(b"".join(some_pages(program.rng, 100)))
        checkpoint = ingest(repository, program.directory, described(), copies=False)
        # The index may be that of the checkpoint before.
        assert checkpoint.statistics.new_bytes in (100 * PAGE_SIZE, 101 * PAGE_SIZE)
        assert checkpoint.statistics.copied_bytes == 0
        assert restore_files(repository, checkpoint, tmp_path) == files_of(program.directory)


def test_first_pack_of_a_long_series_becomes_unused(tmp_path: Path) -> None:
    """Unchanged pages are copied forward, so that the first pack can be removed with the checkpoints that need it."""
    repository = open_store(tmp_path)
    kept = list(series(repository, start_program(tmp_path / "images", 500), 40, 0.1))
    assert not {use.digest for use in kept[0].packs} & {use.digest for use in kept[-1].packs}
    repository.remove([checkpoint.id for checkpoint in kept[:-1]])
    assert kept[0].packs[0].digest in collect_garbage(repository).packs


def test_large_checkpoint_is_stored_in_several_packs(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 3 * pages_in_a_pack(0))
    (checkpoint,) = series(repository, program, 1, 0)
    # Three are full; page map, registers, details and index are in the last one.
    assert [use.pages for use in checkpoint.packs[:-1]] == [pages_in_a_pack(0)] * 3
    assert len(packs(repository)) == len(checkpoint.packs) == 4
    assert restore_files(repository, checkpoint, tmp_path) == files_of(program.directory)
    assert (pages_in_a_pack(16 << 30), pages_in_a_pack((16 << 30) + 1)) == (1 << 18, (1 << 18) + 64)


def test_pages_of_a_damaged_frame_are_copied_from_the_images(tmp_path: Path) -> None:
    """Pages are not copied from old packs: the copies are intact even if the packs are damaged."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 300)
    (first,) = series(repository, program, 1, 0)
    with pack_path(repository, first.packs[0].digest).open("r+b") as file:
        file.seek(100)
        file.write(b"damaged")
    for _ in range(40):
        program.rewrite(0.1)
        checkpoint = ingest(repository, program.directory, described())
    assert restore_files(repository, checkpoint, tmp_path) == files_of(program.directory)
    assert verify(repository, [checkpoint.id]).damages == ()


def test_images_that_change_while_stored_are_an_error(tmp_path: Path) -> None:
    """A page that is read again for a copy must equal the compared one, or its fingerprint would be wrong."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 100)
    list(series(repository, program, 1, 0))
    program.rewrite(0.5)
    pages = program.directory / "pages-1.img"

    def change(done: int, total: int) -> None:
        if done >= total:
            pages.write_bytes(bytes(pages.stat().st_size))

    with pytest.raises(IntegrityError, match=r"pages-1.img changed while it was read"):
        ingest(repository, program.directory, described(), progress=change)
    assert len(repository.checkpoints()) == 1


def test_equal_pages_of_two_processes_are_copied_once(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(1, 101))]}))
    shared = ImageSet(
        {
            "pagemap-1.img": [area(0, *range(1, 11), *range(300, 350))],
            "pagemap-2.img": [area(0, *range(1, 11)), area(900, 0, 5, 0)],
        }
    )
    second = store(repository, tmp_path, shared)
    # Ten pages of memory, and the details.
    assert second.statistics.copied_bytes == 11 * PAGE_SIZE
    assert len(second.packs) == 1
    assert restore_files(repository, second, tmp_path) == files_of(tmp_path / "images-1")


def _used(*packs: tuple[int, int]) -> tuple[Mask, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Packs as (pages, how many of the first ones are used)."""
    masks = [np.arange(size) < live for size, live in packs]
    return np.concatenate(masks), np.cumsum([0, *(size for size, _ in packs)], dtype=np.int64)


def _choose(used: Mask, starts: Positions, new: int, inherited: int = 1000, others: Sequence[int] = (0,)) -> Mask:
    return choose_pages(used, starts, new, inherited, lambda: np.array(others, np.int64))


def test_pages_of_the_least_used_packs_and_frames_are_copied_forward_first() -> None:
    used, starts = _used((3000, 2900), (1000, 130), (1000, 500))
    chosen = _choose(used, starts, 60)
    # 150 pages: all of the second pack, those of its third frame first; then of the third one's least used frame.
    assert chosen[3000:3130].all()
    assert np.flatnonzero(chosen[4000:]).tolist() == list(range(448, 448 + 20))
    assert np.flatnonzero(_choose(used, starts, 1)).tolist() == [3128, 3129]


def test_number_of_pages_copied_forward_is_limited_by_that_of_new_pages() -> None:
    used, starts = _used((10_000, 5000))
    expected = [int(PER_NEW * 50), int(OF_ALL * 5200), int(PER_NEW_OF_MUCH * 1000)]
    assert [int(_choose(used, starts, new).sum()) for new in (50, 200, 1000)] == expected


def test_no_page_is_copied_forward_if_that_frees_nothing() -> None:
    just_enough = int(2000 * USED_BELOW) - 900
    used, starts = _used((1000, just_enough), (1000, 0), (1000, 900))
    assert not _choose(used, starts, 1000).any()
    used, starts = _used((1000, just_enough - 1), (1000, 900))
    assert _choose(used, starts, 1).sum() == int(PER_NEW)
    used, starts = _used((100, 20), (20, 20))
    assert _choose(used, starts, 1000).sum() == 20, "what is used as a whole stays where it is"
    assert not _choose(used, starts, 0).any()
    assert not _choose(np.empty(0, np.bool_), np.zeros(1, np.int64), 5).any()


def test_pages_used_by_other_jobs_are_not_copied() -> None:
    used, starts = _used((1000, 500), (1000, 400))
    chosen = _choose(used, starts, 100, others=[1000, 0])
    assert not chosen[:1000].any()
    assert chosen[1000:].sum() == 50
    assert not _choose(used, starts, 100, others=[1000, 700]).any()
    assert _choose(used, starts, 100, others=[10, 500]).any()


def test_few_pages_of_other_jobs_packs_are_copied() -> None:
    used, starts = _used((1000, 1000), (1000, 15), (1000, 16))
    assert np.flatnonzero(_choose(used, starts, 0, inherited=1)).tolist() == list(range(1000, 1015))
    assert not _choose(used, starts, 0, inherited=2).any()


def test_pages_of_many_small_packs_are_copied_into_one() -> None:
    used, starts = _used(*[(10, 10)] * MOST_PACKS, (5000, 5000), (10, 0))
    chosen = _choose(used, starts, 1)
    assert chosen.sum() == (MOST_PACKS + 1) // 2 * 10
    assert not chosen[MOST_PACKS * 10 :].any()
    used, starts = _used(*[(10, 10)] * MOST_PACKS, (10, 0))
    assert not _choose(used, starts, 1).any()


def test_number_of_packs_of_a_long_series_is_bounded(tmp_path: Path) -> None:
    """Otherwise a program that writes little would have one more pack to open after each checkpoint."""
    repository, most = open_store(tmp_path), examples(MOST_PACKS)
    with smaller_bounds(copy_forward, MOST_PACKS=most):
        *_, last = series(repository, start_program(tmp_path / "images", 5000), most + 20, 0.0005)
    assert most // 3 < len(last.packs) <= most + 1


def test_pages_of_the_simulated_program_differ() -> None:
    made = some_pages(np.random.default_rng(0), 1000)
    assert {len(content) for content in made} == {PAGE_SIZE}
    assert len(set(made)) == 1000
