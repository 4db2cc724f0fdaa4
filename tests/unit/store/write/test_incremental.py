"""Pages that CRIU left to a stored parent are found there: a series is compared with dictionaries."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sets import (
    Area,
    ImageSet,
    area,
    described,
    files_of,
    flip,
    open_store,
    packs,
    page,
    parent_area,
    restore_files,
    write_set,
)
from msgspec.structs import replace
from series import cost, disk

from crckpt.errors import IntegrityError
from crckpt.images.pagemap import PRESENT, PageMap, read_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.store import Checkpoint, Repository, collect_garbage, ingest, materialise_base, verify
from crckpt.store.write.copy_forward import PER_NEW, USED_BELOW

Memory = Mapping[int, int]
"""Of a process: by address in pages, the number of the page that lies there."""

NAMES = ("pagemap-100.img", "pagemap-shmem-7.img")


def stored(
    repository: Repository, base: Path, memory: Mapping[str, Memory], written: Mapping[str, set[int]] | None = None
) -> Checkpoint:
    """A checkpoint of these page maps. Only what was `written` is in the images, the rest is left to the newest one."""
    maps = {name: _areas(pages, None if written is None else written[name]) for name, pages in memory.items()}
    directory = base / f"images-{len(list(base.iterdir()))}"
    # CRIU's own base is gone once it has ended: the link leads nowhere.
    write_set(directory, ImageSet(maps, {"inventory.img": b"i"}), None if written is None else "../gone")
    if written is None:
        return ingest(repository, directory, described())
    newest = repository.checkpoints()[-1]
    return ingest(repository, directory, replace(described(), parent=newest.id, base=base / "gone"))


def _areas(pages: Memory, written: set[int] | None) -> list[Area]:
    if written is not None:
        return [area(at, pages[at]) if at in written else parent_area(at, 1) for at in sorted(pages)]
    return [area(run[0], *(pages[at] for at in run)) for run in _runs(sorted(pages))]


def _runs(addresses: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for address in addresses:
        if runs and runs[-1][-1] + 1 == address:
            runs[-1].append(address)
        else:
            runs.append([address])
    return runs


def held(repository: Repository, checkpoint: Checkpoint, base: Path) -> dict[str, dict[int, bytes]]:
    """The pages of each page map, as the stored images describe them."""
    files = restore_files(repository, checkpoint, base)
    return {name: _pages(read_pagemap(content), files) for name, content in files.items() if name in NAMES}


def _pages(pagemap: PageMap, files: Mapping[str, bytes]) -> dict[int, bytes]:
    assert {entry.flags for entry in pagemap.entries} <= {PRESENT}
    addresses = [entry.vaddr // PAGE_SIZE + at for entry in pagemap.entries for at in range(entry.pages)]
    content = files.get(pagemap.pages_name, b"")
    assert len(content) == len(addresses) * PAGE_SIZE
    return {address: content[at * PAGE_SIZE : (at + 1) * PAGE_SIZE] for at, address in enumerate(addresses)}


def expected(memory: Mapping[str, Memory]) -> dict[str, dict[int, bytes]]:
    return {name: {address: page(number) for address, number in pages.items()} for name, pages in memory.items()}


# Few different pages, zeros among them: equal ones are met at the same place, elsewhere, and in the other map.
places = st.integers(0, 150)
changes = st.dictionaries(places, st.integers(0, 12), max_size=60)
rounds = st.lists(st.tuples(changes, changes, st.sets(places, max_size=40)), min_size=1, max_size=5)


@settings(max_examples=examples(60))
@given(changes, changes, rounds, st.data())
def test_each_checkpoint_of_a_series_is_complete(
    first: Memory, other: Memory, series: list[tuple[dict[int, int], dict[int, int], set[int]]], data: st.DataObject
) -> None:
    """Pages are written, added and removed. Then all checkpoints but one are removed from the store."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        repository = open_store(base)
        memory = {NAMES[0]: dict(first), NAMES[1]: dict(other)}
        kept = [(stored(repository, base, memory), expected(memory))]
        for one, two, gone in series:
            for pages, more in zip(memory.values(), (one, two), strict=True):
                pages |= more
                for address in gone - more.keys():
                    pages.pop(address, None)
            written = {NAMES[0]: set(one), NAMES[1]: set(two)}
            kept.append((stored(repository, base, memory, written), expected(memory)))
            left = sum(len(memory[name].keys() - written[name]) for name in NAMES)
            assert kept[-1][0].statistics.inherited_pages == left
        alone, wanted = data.draw(st.sampled_from(kept))
        repository.remove([checkpoint.id for checkpoint, _ in kept if checkpoint != alone])
        collect_garbage(repository)
        assert verify(repository).damages == ()
        assert held(repository, alone, base) == wanted


@settings(max_examples=examples(60))
@given(changes, st.lists(changes, min_size=2, max_size=5), st.sets(places, max_size=40), st.booleans())
def test_rounds_before_a_dump_are_combined(
    first: Memory, series: list[dict[int, int]], gone: set[int], on_base: bool
) -> None:
    """Each set leaves unwritten pages to the one before. The first leaves them to a checkpoint, or leaves none."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        repository = open_store(base)
        memory = dict(first) if on_base else {}
        parent = stored(repository, base, {NAMES[0]: memory}).id if on_base else None
        images, link = base / "gone", "../gone"
        for number, written in enumerate(series):
            memory |= written
            if number == len(series) - 1:
                memory = {address: held for address, held in memory.items() if address not in gone}
            images = base / f"round-{number}"
            areas = _areas(memory, set(written))
            write_set(images, ImageSet({NAMES[0]: areas}, {"inventory.img": b"i"}), link if on_base or number else None)
            link = f"../{images.name}"
        known = replace(described(), parent=parent, base=base / "gone" if on_base else None)
        made = ingest(repository, images, known)
        repository.remove([checkpoint.id for checkpoint in repository.checkpoints() if checkpoint != made])
        collect_garbage(repository)
        assert verify(repository).damages == ()
        assert held(repository, made, base) == expected({NAMES[0]: memory})


def test_incremental_dump_equals_a_full_dump(tmp_path: Path) -> None:
    memory = dict.fromkeys(range(10, 400), 1) | {address: address for address in range(100, 200)} | {300: 0, 301: 0}
    before = memory | {address: 5000 + address for address in range(120, 130)}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    full_store, incremental_store = open_store(tmp_path / "one"), open_store(tmp_path / "two")
    full = stored(full_store, tmp_path / "one", {NAMES[0]: memory})
    stored(incremental_store, tmp_path / "two", {NAMES[0]: before})
    made = stored(incremental_store, tmp_path / "two", {NAMES[0]: memory}, {NAMES[0]: set(range(120, 130))})
    assert restore_files(incremental_store, made, tmp_path / "two") == restore_files(full_store, full, tmp_path / "one")
    numbers = made.statistics
    assert (numbers.pages, numbers.zero_pages, numbers.raw_bytes) == (
        full.statistics.pages,
        full.statistics.zero_pages,
        full.statistics.raw_bytes,
    )
    assert numbers.inherited_pages == len(memory) - 10
    assert numbers.new_bytes == 11 * PAGE_SIZE, "what was written, and the index"


def test_pages_of_the_parent_are_not_read(tmp_path: Path) -> None:
    """The parent's pages may even be damaged, which `verify` reports."""
    repository = open_store(tmp_path)
    memory = dict(enumerate(range(1, 301)))
    stored(repository, tmp_path, {NAMES[0]: memory})
    (pack,) = packs(repository)
    flip(pack, 100)
    made = stored(repository, tmp_path, {NAMES[0]: memory}, {NAMES[0]: {5}})
    assert made.statistics.inherited_pages == 299
    assert set(verify(repository).lost) == set(repository.ids())


def test_long_series_is_read_as_fast_as_one_checkpoint(tmp_path: Path) -> None:
    """Unchanged pages are copied out of old packs, so that the packs can be removed. No images contain these pages."""
    repository = open_store(tmp_path)
    memory = dict(enumerate(range(1, 1501)))
    first = stored(repository, tmp_path, {NAMES[0]: memory})
    for number in range(1, 80):
        some = {at: 10_000 * number + at for at in range(number * 7 % 29, 1500, 29)}
        memory |= some
        last = stored(repository, tmp_path, {NAMES[0]: memory}, {NAMES[0]: set(some)})
        assert last.statistics.copied_bytes <= PER_NEW * last.statistics.new_bytes
    assert held(repository, last, tmp_path) == expected({NAMES[0]: memory})
    assert cost(repository, last).raw <= 1.6 * cost(repository, first).raw
    repository.remove([checkpoint.id for checkpoint in repository.checkpoints()[:-1]])
    collect_garbage(repository)
    assert disk(repository) <= first.statistics.stored_bytes / USED_BELOW
    assert verify(repository).damages == ()


def test_damage_found_while_copying_ends_the_commit(tmp_path: Path) -> None:
    """The dependent checkpoint is not committed. The next one, which has all its pages, is."""
    repository = open_store(tmp_path)
    memory = dict(enumerate(range(1, 301)))
    stored(repository, tmp_path, {NAMES[0]: memory})
    (pack,) = packs(repository)
    flip(pack, 100)

    def rewrite() -> None:
        for start in range(64, 300, 5):
            some = {at: 10_000 + at for at in range(start, min(start + 5, 300))}
            memory.update(some)
            stored(repository, tmp_path, {NAMES[0]: memory}, {NAMES[0]: set(some)})

    with pytest.raises(IntegrityError, match="frame 0: its SHA-256 does not match"):
        rewrite()
    lost = repository.ids()
    intact = stored(repository, tmp_path, {NAMES[0]: memory})
    assert set(verify(repository).lost) == set(lost)
    assert intact.id not in lost


def test_checkpoint_becomes_parent_images_for_criu(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    memory = {NAMES[0]: {1: 1, 2: 2, 9: 0}, NAMES[1]: {3: 3}}
    checkpoint = stored(repository, tmp_path, memory)
    base = tmp_path / "base"
    base.mkdir()
    materialise_base(repository, checkpoint, base)
    restored = restore_files(repository, checkpoint, tmp_path)
    assert files_of(base) == {name: restored[name] for name in ("inventory.img", *NAMES)}


def _lacks(repository: Repository, base: Path) -> None:
    stored(repository, base, {NAMES[0]: {1: 1, 3: 3}})
    stored(repository, base, {NAMES[0]: {1: 1, 2: 2, 3: 3}}, {NAMES[0]: set()})


def _new_process(repository: Repository, base: Path) -> None:
    stored(repository, base, {NAMES[0]: {1: 1}})
    stored(repository, base, {"pagemap-7.img": {1: 1}}, {"pagemap-7.img": set()})


def _pack_gone(repository: Repository, base: Path) -> None:
    stored(repository, base, {NAMES[0]: {1: 1}})
    stored(repository, base, {NAMES[0]: {1: 1, 2: 2}}, {NAMES[0]: {2}})
    packs(repository)[0].unlink()
    packs(repository)[0].unlink()
    stored(repository, base, {NAMES[0]: {1: 1, 2: 2}}, {NAMES[0]: {2}})


def _out_of_order(repository: Repository, base: Path) -> None:
    parent = stored(repository, base, {NAMES[0]: {1: 1, 2: 2}})
    images = write_set(base / "set", ImageSet({NAMES[0]: [parent_area(2, 1), area(1, 5)]}), "../gone")
    ingest(repository, images, replace(described(), parent=parent.id, base=base / "gone"))


def _endless(repository: Repository, base: Path) -> None:
    parent = stored(repository, base, {NAMES[0]: {1: 1, 2: 2}})
    images = write_set(base / "set", ImageSet({NAMES[0]: [parent_area(1, 1 << 40)]}), "../gone")
    ingest(repository, images, replace(described(), parent=parent.id, base=base / "gone"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_lacks, r"pagemap-100.img: the page at 0x2000 was left to checkpoint \w+, which does not have it"),
        (_new_process, "pagemap-7.img: the page at 0x1000"),
        (_pack_gone, "the page at 0x1000"),
        (_out_of_order, "not in the order of their addresses"),
        (_endless, "an entry needs more pages than the set before can have"),
    ],
)
def test_incremental_images_with_a_missing_parent_page_are_refused(
    make: Callable[[Repository, Path], None], words: str, tmp_path: Path
) -> None:
    repository = open_store(tmp_path)
    with pytest.raises(IntegrityError, match=words):
        make(repository, tmp_path)
    assert list((repository.root / "tmp").iterdir()) == []
