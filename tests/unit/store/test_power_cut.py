"""After a power cut at any moment the store is whole, and has every checkpoint whose ingest had returned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from effort import some
from image_sets import Area, ImageSet, write_set
from power_cut import ALL, LOST, NONE, SOME, WHOLE, ZEROS, Disk, Kept, Torn, cut_short, first, last, prefixes, write_out
from stages import ACTS, REPAIR, Act, Stage, check, memory_directory, spoil
from writer import Entry, Order, Writers

from crckpt.errors import StoreUnusable
from crckpt.model import PAGE_SIZE, CheckpointId
from crckpt.store import Repository, Tag, repair, verify

GC, RM = (next(act for act in ACTS if act.act == name) for name in ("gc", "rm"))

STEPS_AFTER_UNSYNCED_CHANGES = ("sync", "sync-directory", "unlink", "rmdir")
"""Before each of these steps, something was changed that is not on the disk yet."""

Kind = tuple[Kept, Torn]
"""Which names that are not synced are there, and what becomes of content that is not."""

State = frozenset[tuple[Path, bytes | None]]
"""The files that are found, with their content."""

KINDS: tuple[Kind, ...] = (
    (NONE, LOST),
    (ALL, LOST),
    (ALL, ZEROS),
    (SOME, cut_short),
    (first(1), WHOLE),
    (last(1), ZEROS),
)


@dataclass(frozen=True)
class Promise:
    """What a store must have after a power cut, and must not."""

    kept: frozenset[CheckpointId]
    tags: frozenset[Tag]


def _promise(root: Path) -> Promise:
    repository = Repository.open(root)
    ids = frozenset(checkpoint.id for checkpoint in repository.checkpoints())
    return Promise(ids, frozenset(repository.tags()))


def _cuts(disk: Disk, seed: int, kinds: Sequence[Kind] = KINDS, known: set[State] | None = None) -> Iterator[Path]:
    """A directory for each kind of power cut that could happen now; one for those that leave the same.

    None for those that are `known`; the others are added to them.
    """
    known = set() if known is None else known
    for number, (kept, torn) in enumerate(kinds):
        files = disk.after_cut(seed * 100 + number, kept, torn)
        state = frozenset(files.items())
        if state not in known:
            known.add(state)
            with memory_directory() as directory:
                write_out(files, directory)
                yield directory


def _cuts_at_any_moment(disk: Disk, entries: Sequence[Entry], root: Path) -> Iterator[tuple[Path, bool]]:
    """Apply the entries. A directory for each power cut before, between and after them; whether it was after all.

    Those that leave what another has left are left out, if not after all.
    """
    known: set[State] = set()
    chosen = some(range(len(entries)))
    for number in prefixes(entries, disk, root):
        is_after_all = number == len(entries)
        if number not in chosen and not is_after_all:
            continue
        for found in _cuts(disk, number, known=None if is_after_all else known):
            yield found, is_after_all


def _orders(disk: Disk) -> list[Kind]:
    """Kinds of power cuts where the disk has done things in another order than they were asked for."""
    return [(last(number), WHOLE) for number in range(disk.unsafe + 1)]


def _recorded(forked: Writers, stage: Stage, act: Act, kill_at: str = "") -> list[Entry]:
    order = Order(act.act, str(stage.root), stage.arguments(act), kill_at=kill_at)
    return forked.record_steps(order, stage.base / "log")


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_power_cut_at_any_step_keeps_what_was_promised(act: Act, stage: Stage, forked_writers: Writers) -> None:
    before = Repository.open(stage.root).checkpoints()
    with stage.copy() as copy:
        disk = Disk(copy.root)
        entries = _recorded(forked_writers, copy, act)
        for found, is_after_all in _cuts_at_any_moment(disk, entries, copy.root):
            if is_after_all:
                assert _promise(found) == _promise(copy.root)
            check(found, before, act)


def test_power_cut_while_two_packs_are_added(stage: Stage, forked_writers: Writers) -> None:
    before = Repository.open(stage.root).checkpoints()
    act = Act("ingest", "ingest", ("/large", "large"), adds=1)
    pages = tuple(number.to_bytes(PAGE_SIZE) for number in range(1, 4500))
    with stage.copy() as copy:
        write_set(copy.base / "large", ImageSet({"pagemap-7.img": [Area(0, pages)]}))
        disk = Disk(copy.root)
        entries = _recorded(forked_writers, copy, act)
        names = [entry.name for entry in entries]
        assert names.count("pack.rename") == 2
        begin = names.index("pack.rename")
        _apply(disk, entries[:begin], copy.root)
        for found, is_after_all in _cuts_at_any_moment(disk, entries[begin:], copy.root):
            if is_after_all:
                assert _promise(found) == _promise(copy.root)
            check(found, before, act)


def test_power_cut_at_any_step_of_a_repair(stage: Stage, forked_writers: Writers) -> None:
    """Nothing more is lost, and repaired files stay repaired. Another repair finishes the work."""
    before = Repository.open(stage.root).checkpoints()
    with stage.copy() as copy:
        spoil(copy)
        lost = set(verify(Repository.open(copy.root)).lost)
        disk = Disk(copy.root)
        entries = _recorded(forked_writers, copy, REPAIR)
        assert lost == {checkpoint.id for checkpoint in before}
        for found, is_after_all in _cuts_at_any_moment(disk, entries, copy.root):
            repository = Repository.open(found)
            damages = verify(repository)
            assert set(damages.lost) <= lost
            if is_after_all:
                assert damages.damages == ()
            assert repair(repository, source=Repository.open(copy.base / "whole")).now.damages == ()
            check(found, before, REPAIR)


def test_power_cut_at_any_step_of_the_creation(stage: Stage, forked_writers: Writers) -> None:
    with memory_directory() as base:
        disk = Disk(base)
        store = Stage(base / "above/below")
        order = Order("create-ingest", str(store.root), (str(stage.base / "sets/next"), "job"))
        entries = forked_writers.record_steps(order, base / "log")
        for found, is_after_all in _cuts_at_any_moment(disk, entries, base):
            root = found / "above/below/store"
            Repository.open(root, create=not is_after_all)
            if is_after_all:
                assert _promise(root) == _promise(store.root)
            check(root, (), ACTS[0])


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_power_cut_after_a_kill_keeps_what_was_promised(act: Act, stage: Stage, forked_writers: Writers) -> None:
    """The next process relies on data that the killed one has not synced."""
    before = Repository.open(stage.root).checkpoints()
    with stage.copy() as copy:
        names = dict.fromkeys(
            entry.name for entry in _recorded(forked_writers, copy, act) if entry.verb in STEPS_AFTER_UNSYNCED_CHANGES
        )
    followers = (act, GC) if act.adds or act.act == "tag" else (GC, ACTS[0])
    both = replace(act, adds=act.adds + 1)
    for seed, name in enumerate(some([*names], ACTS.index(act))):
        with stage.copy() as copy:
            disk = Disk(copy.root)
            _apply(disk, _recorded(forked_writers, copy, act, name), copy.root)
            for follower in followers:
                had = _promise(copy.root)
                entries = _recorded(forked_writers, copy, follower)
                number = Random(seed).randrange(len(entries))
                _apply(disk, entries[:number], copy.root)
                for found in _cuts(disk, seed, [KINDS[seed % len(KINDS)]]):
                    check(found, before, both)
                _apply(disk, entries[number:], copy.root)
                new = _promise(copy.root)
                for found in _cuts(disk, seed, [*_orders(disk), (SOME, ZEROS)]):
                    assert new.kept - had.kept <= _promise(found).kept
                    assert follower.act != "tag" or new.tags <= _promise(found).tags
                    check(found, before, both)


def test_power_cut_after_a_killed_creation(stage: Stage, forked_writers: Writers) -> None:
    with memory_directory() as base:
        names = [
            entry.name
            for entry in forked_writers.record_steps(Order("create", str(base / "above/store")), base / "log")
        ]
    moments = dict.fromkeys((*names, *(f"{name}:{names.count(name)}" for name in names)))
    for seed, moment in enumerate(some([*moments])):
        with memory_directory() as base:
            new = Stage(base / "above")
            disk = Disk(base)
            _apply(
                disk, forked_writers.record_steps(Order("create", str(new.root), kill_at=moment), base / "log"), base
            )
            again = Order("create-ingest", str(new.root), (str(stage.base / "sets/next"), "job"))
            _apply(disk, forked_writers.record_steps(again, base / "log"), base)
            for found in _cuts(disk, seed):
                assert _promise(found / "above/store") == _promise(new.root)
                check(found / "above/store", (), ACTS[0])


def _apply(disk: Disk, entries: list[Entry], directory: Path) -> None:
    for entry in entries:
        disk.apply(entry, directory)


@pytest.mark.parametrize(
    ("act", "name"),
    [
        *((ACTS[0], name) for name in ("pack.sync", "pack.sync-directory", "pack-directory.sync-directory")),
        *((ACTS[0], name) for name in ("manifest.sync", "manifest-directory.sync-directory")),
        *((ACTS[3], name) for name in ("tag.sync", "tag.sync-directory", "tag-directory.sync-directory")),
        (RM, "doomed.sync-directory"),
        (RM, "tag.sync-directory"),
        *((REPAIR, name) for name in ("manifest.sync", "manifest.sync-directory", "pack.sync", "pack.sync-directory")),
        (REPAIR, "pack-directory.sync-directory"),
    ],
    ids=str,
)
def test_tests_of_power_cuts_detect_a_missing_sync(act: Act, name: str, stage: Stage, forked_writers: Writers) -> None:
    """The test leaves out a sync, and the simulated power cuts find the loss."""
    with stage.copy() as copy:
        if act == REPAIR:
            spoil(copy)
        disk = Disk(copy.root)
        entries = _recorded(forked_writers, copy, act)
        _apply(disk, [entry for entry in entries if entry.name != name], copy.root)
        assert any(not _is_kept(found, _promise(copy.root)) for seed in range(5) for found in _cuts(disk, seed))
        assert name in {entry.name for entry in entries}


def _is_kept(root: Path, promise: Promise) -> bool:
    try:
        return _promise(root) == promise and verify(Repository.open(root)).damages == ()
    except StoreUnusable:
        return False
