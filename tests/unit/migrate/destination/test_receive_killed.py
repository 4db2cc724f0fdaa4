"""A destination that is killed, or loses power, at any step harms nothing in its store; a second move succeeds."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import some
from image_sets import ONE_PROCESS, of_pages, open_store, store
from power_cut import ALL, LOST, NONE, SOME, ZEROS, Disk, cut_short, prefixes, write_out
from stages import memory_directory
from writer import Order, Writers, writers

from crckpt.store import Checkpoint, Repository, collect_garbage, verify
from crckpt.store.backend.flock import holders

MESSAGES = ("send.", "sent.", "receive.")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[Writers]:
    """A process that forks destinations."""
    with writers() as found:
        yield found


def new_destination(base: Path) -> Repository:
    """A store with a checkpoint of its own, which has some of the pages."""
    repository = open_store(base)
    store(repository, base, of_pages(*range(1, 50)))
    return repository


def steps(forked: Writers, source: Path) -> Counter[str]:
    """The steps of a destination, and how often it takes each."""
    with memory_directory() as base:
        repository = new_destination(base)
        order = Order("receive", str(repository.root), (str(source),))
        return Counter(entry.name for entry in forked.record_steps(order, base / "log"))


def check(repository: Repository, before: tuple[Checkpoint, ...], made: Checkpoint) -> None:
    """Check that old checkpoints are unchanged, and that the new one is complete or missing."""
    assert repository.checkpoints() in (before, (*before, made))
    assert repository.unreadable() == ()
    assert verify(repository).damages == ()
    assert holders(repository.root) == ()


def test_destination_killed_before_any_step_leaves_a_valid_store(fork_server: Writers, tmp_path: Path) -> None:
    source = open_store(tmp_path)
    for images in (of_pages(*range(1, 300)), of_pages(*range(20, 400)), ONE_PROCESS):
        checkpoint = store(source, tmp_path, images)
    taken = steps(fork_server, source.root)
    assert {"received-pack.write", "received-pack.sync", "pack.rename", "manifest-directory.rename"} <= set(taken)
    for moment in some([f"{name}:{number}" for name, times in taken.items() for number in sorted({1, times})]):
        with memory_directory() as base:
            repository = new_destination(base)
            before = repository.checkpoints()
            order = Order("receive", str(repository.root), (str(source.root),), kill_at=moment)
            assert fork_server.status(order) == -signal.SIGKILL, moment
            check(repository, before, checkpoint)
            assert fork_server.status(Order("receive", str(repository.root), (str(source.root),))) == 0
            check(repository, before, checkpoint)
            assert repository.get(checkpoint.id) == checkpoint
            collect_garbage(repository)
            assert not list(repository.backend.scratch.iterdir())
            check(repository, before, checkpoint)


def test_power_cut_of_the_destination_at_any_step_leaves_a_valid_store(fork_server: Writers, tmp_path: Path) -> None:
    source = open_store(tmp_path)
    for images in (of_pages(*range(1, 300)), ONE_PROCESS):
        checkpoint = store(source, tmp_path, images)
    with memory_directory() as base:
        repository = new_destination(base)
        before, disk = repository.checkpoints(), Disk(repository.root)
        order = Order("receive", str(repository.root), (str(source.root),))
        # Messages change no files.
        entries = [
            entry for entry in fork_server.record_steps(order, base / "log") if not entry.name.startswith(MESSAGES)
        ]
        for number in prefixes(entries, disk, repository.root):
            for kept, torn in ((NONE, LOST), (ALL, ZEROS), (SOME, cut_short)):
                with memory_directory() as directory:
                    write_out(disk.after_cut(number, kept, torn), directory)
                    found = Repository.open(directory)
                    check(found, before, checkpoint)
                    assert number < len(entries) or checkpoint in found.checkpoints()
