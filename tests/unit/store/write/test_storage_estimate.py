"""The estimate of what storing memory would cost equals the real cost, and leaves no file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from image_sets import ImageSet, area, open_store, page, store

from crckpt.model import PAGE_SIZE
from crckpt.store import Checkpoint, Repository
from crckpt.store.write.packing import StorageTrial, TrialResult

NUMBERS = tuple(range(1, 200))
IMAGES = ImageSet({"pagemap-100.img": [area(10, *NUMBERS)]})


def run(*numbers: int) -> bytes:
    """A run of the pages of these numbers."""
    return b"".join(page(number) for number in numbers)


def stored_on_trial(tmp_path: Path, repository: Repository, parent: Checkpoint | None, *runs: bytes) -> TrialResult:
    """Store these pages on trial, which estimates their size in the store."""
    with TemporaryDirectory(dir=tmp_path) as work, TemporaryDirectory(dir=tmp_path) as images:
        pages = Path(images, "pages-1.img")
        pages.write_bytes(b"".join(runs))
        result = StorageTrial(repository, parent, Path(work), None).store(pages)
        assert not list(Path(work).iterdir())
    return result


def test_estimate_equals_the_stored_size_and_leaves_nothing(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    trial = stored_on_trial(tmp_path, repository, None, run(*NUMBERS), run(0, 0))
    assert repository.checkpoints() == ()
    assert not list((repository.root / "packs").iterdir())
    stored = store(repository, tmp_path, IMAGES).statistics.stored_bytes
    assert 0.9 * stored < trial.stored <= stored
    assert trial.ms > 0


def test_trial_counts_no_space_for_pages_of_the_parent_checkpoint(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    parent = store(repository, tmp_path, IMAGES)
    known = run(*NUMBERS), run(7, 8), run(9)
    assert stored_on_trial(tmp_path, repository, parent, *known).stored == 0
    assert stored_on_trial(tmp_path, repository, parent, *known, run(1000)).stored > PAGE_SIZE // 4


def test_trial_counts_no_space_for_pages_that_another_job_has_stored(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, IMAGES)
    assert stored_on_trial(tmp_path, repository, None, run(*NUMBERS)).stored == 0


def test_trial_counts_equal_pages_of_two_processes_once(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    one_process = stored_on_trial(tmp_path, repository, None, run(*NUMBERS))
    two_processes = stored_on_trial(tmp_path, repository, None, run(*NUMBERS), run(*NUMBERS))
    assert two_processes.stored == one_process.stored
