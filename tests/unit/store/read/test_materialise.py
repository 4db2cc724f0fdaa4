"""A stored checkpoint is restored byte for byte, whatever happens to other checkpoints."""

from __future__ import annotations

import shutil
import signal
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from checkout import TESTS
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)
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
    restore_files,
    store,
    write_set,
)
from stages import superfluous
from writer import Order, Writers

from crckpt.model import CheckpointId
from crckpt.store import (
    Repository,
    collect_garbage,
    ingest,
    materialise,
    repair,
    verify,
)
from crckpt.store.write.copy_forward import PER_NEW

# Few different pages, so that equal ones are met at the same place, elsewhere, and in other objects.
numbers = st.integers(0, 12)
areas = st.lists(
    st.builds(lambda address, some: area(address, *some), st.integers(0, 300), st.lists(numbers, max_size=80)),
    max_size=6,
)
MAPS = ("pagemap-100.img", "pagemap-102.img", "pagemap-shmem-7.img")
contents = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda some, tail: b"".join(map(page, some)) + tail, st.lists(numbers, max_size=70), st.binary(max_size=50)
    ),
)
FILES = ("core-100.img", "files.img", "ghost-file-1.img", "pages-9.img", "tmpfs-dev-1.tar.gz.img")
sets = st.builds(
    ImageSet, st.dictionaries(st.sampled_from(MAPS), areas), st.dictionaries(st.sampled_from(FILES), contents)
)
seeds = st.integers(0, 1 << 32)
crashes = st.none() | seeds
"""What picks the step before which the crash is; None: there is none."""
Stored = CheckpointId | MultipleResults[CheckpointId]


@settings(max_examples=examples(60))
@given(st.lists(sets, min_size=1, max_size=3))
def test_series_of_checkpoints_with_any_content_round_trips(series: list[ImageSet]) -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        repository = open_store(base)
        kept = [store(repository, base, images) for images in series]
        for number, checkpoint in enumerate(kept):
            assert restore_files(repository, checkpoint, base) == files_of(base / f"images-{number}")
        assert verify(repository).damages == ()


class StoreStateMachine(RuleBasedStateMachine):
    """Any order of dumps, removals, collections, repairs and crashes in the middle of them.

    What is kept comes back, nothing else stays for long.
    """

    forked: Writers
    kept: Bundle[CheckpointId] = Bundle("kept")

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.repository = open_store(self.base)
        self.expected: dict[CheckpointId, dict[str, bytes]] = {}
        self.dumps = 0
        self.heap: list[int] = []
        self.copies: list[Repository] = []

    @rule(target=kept, images=sets, job=st.sampled_from(("one", "two")), crash=crashes)
    def dump(self, images: ImageSet, job: str, crash: int | None) -> Stored:
        return self.stored(images, job, crash)

    @rule(target=kept, every=st.integers(2, 9), offset=st.integers(0, 8), more=st.integers(0, 30), crash=crashes)
    def dump_of_a_heap(self, every: int, offset: int, more: int, crash: int | None) -> Stored:
        """Dump one program repeatedly; some pages are rewritten, so that others are copied forward."""
        fresh = 1000 * (self.dumps + 1)
        self.heap = self.heap or list(range(100_000, 100_000 + 150))
        self.heap[offset::every] = range(fresh, fresh + len(self.heap[offset::every]))
        self.heap += range(fresh + 500, fresh + 500 + more)
        return self.stored(ImageSet({"pagemap-100.img": [area(5, *self.heap)]}), "heap", crash)

    def stored(self, images: ImageSet, job: str, crash: int | None) -> Stored:
        """Check that after a crash the checkpoint is there completely or not at all."""
        self.dumps += 1
        directory = write_set(self.base / f"set-{self.dumps}", images)
        if crash is None:
            ingest(self.repository, directory, described(job))
        else:
            self.crash(crash, "ingest", str(directory), job, datetime.now(UTC).isoformat())
        new = [checkpoint for checkpoint in self.repository.checkpoints() if checkpoint.id not in self.expected]
        if crash is not None and not new:
            return multiple()
        (checkpoint,) = new
        self.expected[checkpoint.id] = files_of(directory)
        numbers = checkpoint.statistics
        assert numbers.copied_bytes <= PER_NEW * numbers.new_bytes
        return checkpoint.id

    @rule(target=kept, doomed=consumes(kept), crash=crashes)
    def remove(self, doomed: CheckpointId, crash: int | None) -> Stored:
        if crash is None:
            self.repository.remove([doomed])
        else:
            self.crash(crash, "rm", doomed)
            if doomed in self.repository.ids():
                return doomed
        del self.expected[doomed]
        return multiple()

    @rule()
    def collect(self) -> None:
        collect_garbage(self.repository)
        assert superfluous(self.repository) == set()

    @rule(seed=seeds)
    def collect_and_crash(self, seed: int) -> None:
        self.crash(seed, "gc")

    def crash(self, seed: int, act: str, *arguments: str) -> None:
        """Let a writer do this, and kill it before one of its steps; a copy of the store says which they are."""
        with tempfile.TemporaryDirectory() as name:
            copy = shutil.copytree(self.repository.root, Path(name) / "store")
            taken = [
                entry.name for entry in self.forked.record_steps(Order(act, str(copy), arguments), Path(name) / "log")
            ]
        at = Random(seed).randrange(len(taken))
        moment = f"{taken[at]}:{taken[: at + 1].count(taken[at])}"
        order = Order(act, str(self.repository.root), arguments, kill_at=moment)
        assert self.forked.status(order) == -signal.SIGKILL

    @rule()
    def verify(self) -> None:
        found = verify(self.repository)
        assert found.damages == ()
        assert set(found.checkpoints) == self.expected.keys()

    @rule()
    def back_up(self) -> None:
        copy = self.base / f"copy-{len(self.copies)}"
        shutil.copytree(self.repository.root, copy)
        self.copies.append(Repository.open(copy))

    @precondition(lambda self: self.copies and self.expected)
    @rule(data=st.data(), share=st.floats(0, 1, exclude_max=True), crash=crashes)
    def damage_and_mend(self, data: st.DataObject, share: float, crash: int | None) -> None:
        """What an older copy of the store has of it is mended, if need be at the second try; the rest is as it was."""
        files = sorted((*packs(self.repository), *self.repository.root.glob("checkpoints/*/manifest.json")))
        path, copy = data.draw(st.sampled_from(files)), data.draw(st.sampled_from(self.copies))
        offset = int(share * path.stat().st_size)
        intact = path.read_bytes()
        flip(path, offset)
        there = copy.root / path.relative_to(self.repository.root)
        lost = set(verify(self.repository).lost)
        if crash is not None:
            self.crash(crash, "repair", str(copy.root))
            assert set(verify(self.repository).lost) <= lost
        result = repair(self.repository, source=copy)
        assert set(result.now.lost) == (set() if there.exists() else lost)
        assert set(result.restorable) == self.expected.keys() - set(result.now.lost)
        if there.exists() and lost:
            assert path.read_bytes() == intact
        else:
            flip(path, offset)

    @rule()
    def forget_fingerprints(self) -> None:
        shutil.rmtree(self.repository.root / "cache/fingerprints")
        (self.repository.root / "cache/fingerprints").mkdir(mode=0o700)

    @precondition(lambda self: bool(self.expected))
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.expected)))
        assert restore_files(self.repository, self.repository.get(chosen), self.base) == self.expected[chosen]

    @invariant()
    def all_are_listed(self) -> None:
        assert {checkpoint.id for checkpoint in self.repository.checkpoints()} == self.expected.keys()

    def teardown(self) -> None:
        self.verify()
        self.collect()
        shutil.rmtree(self.base)


@pytest.fixture(scope="module", autouse=True)
def _crash(forked_writers: Writers) -> None:
    """Let `StoreStateMachine`, of which hypothesis makes instances, have those that crash."""
    StoreStateMachine.forked = forked_writers


TestLives = StoreStateMachine.TestCase
TestLives.settings = settings(max_examples=examples(25), stateful_step_count=20)


def test_checkpoint_with_more_files_and_frames_than_fit_at_once_round_trips(tmp_path: Path) -> None:
    numbers = [number % 1500 + 1 for number in range(5000)]
    files = {f"core-{number}.img": b"%d" % number * 40 for number in range(300)}
    ghost = {"ghost-file-1.img": b"".join(map(page, range(900, 0, -1))) + b"the end"}
    images = ImageSet({"pagemap-100.img": [area(10, *numbers)]}, {**files, **ghost})
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, images)
    assert restore_files(repository, checkpoint, tmp_path) == files_of(tmp_path / "images-0")
    assert checkpoint.statistics.new_bytes < 4096 * (1500 + 300 + 50)


def test_overlapping_areas_keep_both_contents(tmp_path: Path) -> None:
    images = ImageSet({"pagemap-100.img": [area(10, 1, 2, 3), area(11, 4, 5)]})
    repository = open_store(tmp_path)
    first, second = store(repository, tmp_path, images), store(repository, tmp_path, images)
    assert (
        restore_files(repository, first, tmp_path)
        == restore_files(repository, second, tmp_path)
        == files_of(tmp_path / "images-0")
    )


def test_zero_pages_become_holes_in_restored_images(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(0, *[0] * 2000, 1)]}))
    directory = tmp_path / "out"
    directory.mkdir()
    materialise(repository, checkpoint, directory)
    status = (directory / "pages-1.img").stat()
    assert status.st_size == 2001 * 4096
    assert status.st_blocks * 512 < 100_000


def test_restored_image_files_are_private_and_replace_no_file(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet(files={"core-1.img": b"x"}))
    directory = tmp_path / "out"
    directory.mkdir()
    materialise(repository, checkpoint, directory)
    assert stat.S_IMODE((directory / "core-1.img").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        materialise(repository, checkpoint, directory)


def test_progress_of_restoring_images_ends_at_the_total(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = write_set(tmp_path / "images", ImageSet({"pagemap-1.img": [area(0, *range(5000))]}, {"a.img": b"a" * 5}))
    progress: list[tuple[int, int]] = []
    checkpoint = ingest(repository, images, described(), progress=lambda done, total: progress.append((done, total)))
    assert progress[-1] == (checkpoint.statistics.raw_bytes, checkpoint.statistics.raw_bytes)
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    unpacked: list[tuple[int, int]] = []
    (tmp_path / "out").mkdir()
    materialise(repository, checkpoint, tmp_path / "out", progress=lambda done, total: unpacked.append((done, total)))
    size = sum(path.stat().st_size for path in images.iterdir())
    assert unpacked[-1] == (size, size)


def test_real_images_round_trip(tmp_path: Path) -> None:
    real = TESTS / "data/images/tree"
    images = {path.name: path.read_bytes() for path in real.iterdir() if not path.name.startswith("pagemap-")}
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet(files=images))
    assert restore_files(repository, checkpoint, tmp_path) == images


def test_image_with_an_empty_area_round_trips(tmp_path: Path) -> None:
    images = ImageSet({"pagemap-100.img": [Area(4096, ()), area(2, 3)], "pagemap-shmem-1.img": []})
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, images)
    assert restore_files(repository, checkpoint, tmp_path) == files_of(tmp_path / "images-0")
