"""Concurrent use of a store: who may use it, the reported holder, and locks of dead processes."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkout import SUPPORT
from image_sets import ImageSet, area, files_of, open_store, packs, restore_files, store, write_set

from crckpt.errors import StoreLocked
from crckpt.store import Repository, collect_garbage, verify
from crckpt.store.backend.flock import holders

HOLD = """
import sys
from pathlib import Path
from crckpt.store import Repository
repository = Repository.open(Path(sys.argv[1]))
with getattr(repository, sys.argv[2])():
    print("held", flush=True)
    sys.stdin.read(1)
"""

INGEST = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from image_sets import described
from crckpt.store import Repository, ingest
repository = Repository.open(Path(sys.argv[1]))
while True:
    for images in sorted(Path(sys.argv[2]).iterdir()):
        ingest(repository, images, described())
        print("one done", flush=True)
"""


@contextmanager
def held_by_another(repository: Repository, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock, `shared` or `exclusive`, until it gets a byte."""
    command = [sys.executable, "-c", HOLD, str(repository.root), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            if process.poll() is None:
                process.communicate(b"x")


@pytest.mark.parametrize(
    ("theirs", "ours"), [("shared", "exclusive"), ("exclusive", "shared"), ("exclusive", "exclusive")]
)
def test_error_after_waiting_for_a_store_lock_names_its_holder(theirs: str, ours: str, tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with held_by_another(repository, theirs) as other:
        with pytest.raises(StoreLocked, match=f"PID {other.pid} ") as refusal, getattr(repository, ours)(timeout=0.1):
            pass
        assert f"kill {other.pid}" in refusal.value.hint
        assert [owner.pid for owner in holders(repository.root)] == [other.pid]
    with getattr(repository, ours)(timeout=0):
        assert [owner.pid for owner in holders(repository.root)] == [os.getpid()]
    assert holders(repository.root) == ()


def test_readers_and_writers_share_the_store_lock(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with held_by_another(repository, "shared"):
        checkpoint = store(repository, tmp_path, ImageSet(files={"a.img": b"a"}))
        assert restore_files(repository, checkpoint, tmp_path) == {"a.img": b"a"}


def test_process_that_waits_for_the_exclusive_lock_gets_it_next(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with held_by_another(repository, "exclusive") as other:
        command = [sys.executable, "-c", HOLD, str(repository.root), "shared"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waiting:
            assert waiting.stdout
            assert select.select([waiting.stdout], [], [], 0.5)[0] == []
            other.communicate(b"x")
            assert waiting.stdout.readline() == b"held\n"
            waiting.communicate(b"x")


def test_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with held_by_another(repository, "exclusive") as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        with repository.exclusive(timeout=0):
            assert [owner.pid for owner in holders(repository.root)] == [os.getpid()]
    assert collect_garbage(repository).leftovers != ()
    assert list((repository.root / "locks").iterdir()) == []


def test_store_locks_can_be_nested(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with repository.exclusive(timeout=0), repository.shared(timeout=0), repository.exclusive(timeout=0):
        assert len(holders(repository.root)) == 1
    with repository.shared(), pytest.raises(RuntimeError), repository.exclusive():
        pass
    with held_by_another(repository, "exclusive"):
        pass


def test_dump_killed_at_any_time_leaves_a_valid_store(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    (tmp_path / "sets").mkdir()
    for number in range(6):
        pages = range(number * 400 + 1, number * 400 + 900)
        write_set(tmp_path / "sets" / str(number), ImageSet({"pagemap-1.img": [area(0, *pages)]}))
    command = [sys.executable, "-c", INGEST, str(repository.root), str(tmp_path / "sets"), str(SUPPORT)]
    chance = random.Random(5)
    expected = [files_of(path) for path in sorted((tmp_path / "sets").iterdir())]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            writer.stdout.readline()
            # The moment of the kill is random.
            select.select([], [], [], chance.uniform(0.05, 0.4))
            writer.kill()
    assert verify(repository).damages == ()
    kept = repository.checkpoints()
    assert len(kept) >= 8
    collect_garbage(repository)
    assert list((repository.root / "tmp").iterdir()) == []
    named = {use.digest for checkpoint in kept for use in checkpoint.packs}
    assert {path.stem for path in packs(repository)} == named
    assert all(restore_files(repository, checkpoint, tmp_path) in expected for checkpoint in kept[-3:])
