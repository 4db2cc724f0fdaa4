"""Equal pages are stored once in a store, whichever jobs have them, and stay as long as any of them needs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkout import SUPPORT
from image_sets import (
    ImageSet,
    area,
    described,
    files_of,
    flip,
    of_pages,
    open_store,
    pack_path,
    packs,
    restore_files,
    store,
    write_set,
)
from memory_backend import MemoryBackend
from series import start_program

from crckpt.errors import StoreLocked
from crckpt.model import PAGE_SIZE, JobName
from crckpt.store import Checkpoint, Repository, collect_garbage, ingest, repair, verify
from crckpt.store.layout import DESCRIPTION
from crckpt.store.repository import new_description, read_store_id
from crckpt.store.write.copy_forward import LEAST_FOUND
from crckpt.store.write.new_packs import pages_in_a_pack

PAGES = tuple(range(1, 2001))


def _stored(repository: Repository) -> int:
    return sum(path.stat().st_size for path in packs(repository))


def _digests(checkpoint: Checkpoint) -> set[str]:
    return {use.digest for use in checkpoint.packs}


def test_second_job_with_the_same_pages_stores_almost_nothing(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*PAGES), described("one"))
    second = store(repository, tmp_path, of_pages(*PAGES), described("two"))
    assert second.parent is None
    assert second.statistics.stored_bytes < 0.05 * first.statistics.stored_bytes
    assert second.statistics.new_bytes < 0.05 * first.statistics.new_bytes
    assert restore_files(repository, second, tmp_path) == files_of(tmp_path / "images-1")


def test_reordered_and_partial_pages_are_found(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*PAGES), described("one"))
    some = [*range(5001, 5050), *reversed(PAGES[700:1700]), *range(6001, 6050)]
    second = store(repository, tmp_path, ImageSet({"pagemap-7.img": [area(90, *some)]}), described("two"))
    assert second.statistics.new_bytes < 110 * PAGE_SIZE
    assert _digests(first) & _digests(second)
    assert restore_files(repository, second, tmp_path) == files_of(tmp_path / "images-1")


def test_ten_workers_of_one_program_take_the_space_of_one(tmp_path: Path) -> None:
    """Each worker has 2 % of its own pages."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 3 * pages_in_a_pack(0))
    one = ingest(repository, program.directory, described("worker-0")).statistics.stored_bytes
    kept = {}
    for number in range(1, 10):
        program.rewrite(0.02)
        job = f"worker-{number}"
        checkpoint = ingest(repository, program.directory, described(job))
        kept[checkpoint] = files_of(program.directory)
    assert _stored(repository) < 1.25 * one
    assert all(restore_files(repository, checkpoint, tmp_path) == files for checkpoint, files in kept.items())
    assert verify(repository).damages == ()


def test_series_of_many_jobs_stay_shared(tmp_path: Path) -> None:
    """A pack that the first job uses completely is not copied for the part that the second job uses."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", pages_in_a_pack(0))
    ingest(repository, program.directory, described("one"))
    with (program.directory / "pages-1.img").open("r+b") as file:
        # Half of it is of the second job's own.
        file.write(np.random.default_rng(9).bytes(program.pages // 2 * PAGE_SIZE))
    for _ in range(10):
        checkpoint = ingest(repository, program.directory, described("two"))
        program.rewrite(0.001)
    assert checkpoint.statistics.copied_bytes == 0


def test_first_of_two_jobs_with_shared_pages_can_be_removed(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*PAGES, 7001), described("one"))
    second = store(repository, tmp_path, of_pages(*PAGES, 7002), described("two"))
    shared = _digests(first) & _digests(second)
    assert shared
    repository.remove([first.id])
    assert not shared & set(collect_garbage(repository).packs)
    assert verify(repository).damages == ()
    assert restore_files(repository, second, tmp_path) == files_of(tmp_path / "images-1")
    repository.remove([second.id])
    collect_garbage(repository)
    assert packs(repository) == []


def test_unreferenced_packs_are_reused_until_gc(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    repository.remove([store(repository, tmp_path, of_pages(*PAGES), described("one")).id])
    second = store(repository, tmp_path, of_pages(*PAGES), described("two"))
    assert second.statistics.new_bytes < 10 * PAGE_SIZE
    collect_garbage(repository)
    assert verify(repository).damages == ()
    repository.remove([second.id])
    collect_garbage(repository)
    third = store(repository, tmp_path, of_pages(*PAGES), described("three"))
    assert third.statistics.new_bytes > len(PAGES) * PAGE_SIZE
    assert restore_files(repository, third, tmp_path) == files_of(tmp_path / "images-2")


def test_few_pages_do_not_keep_a_pack_of_another_job(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", pages_in_a_pack(0))
    first = ingest(repository, program.directory, described("one"))
    some = int(LEAST_FOUND * program.pages) - 5
    pages = (program.directory / "pages-1.img").read_bytes()[: some * PAGE_SIZE]
    second = store(repository, tmp_path, ImageSet(files={"ghost-file-1.img": pages}), described("two"))
    assert first.packs[0].pages == pages_in_a_pack(0)
    assert first.packs[0].digest not in _digests(second)


DUMP = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from image_sets import described
from crckpt.store import Repository, ingest
print(ingest(Repository.open(Path(sys.argv[1])), Path(sys.argv[2]), described("two")).id)
"""


def _dump(repository: Repository, images: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DUMP, str(repository.root), str(images), str(SUPPORT)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


@pytest.mark.parametrize("moment", ["pack.sync", "manifest-directory.rename"])
def test_gc_keeps_packs_that_a_running_dump_will_reference(moment: str, tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*PAGES), described("one"))
    images = write_set(tmp_path / "second", of_pages(*PAGES, 8001))
    dumping = _dump(repository, images, CRCKPT_STOP_AT=moment)
    try:
        _, status = os.waitpid(dumping.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        for act in (lambda: repository.remove([first.id]), lambda: collect_garbage(repository)):
            with pytest.raises(StoreLocked), repository.exclusive(timeout=0.1):
                act()
    finally:
        dumping.send_signal(signal.SIGCONT)
        output, _ = dumping.communicate()
    (second,) = repository.checkpoints(JobName("two"))
    assert output.strip() == second.id
    assert _digests(first) & _digests(second)
    repository.remove([first.id])
    collect_garbage(repository)
    assert verify(repository).damages == ()
    assert restore_files(repository, second, tmp_path) == files_of(images)


def test_packs_of_a_killed_dump_are_reused(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = write_set(tmp_path / "first", of_pages(*PAGES))
    killed = _dump(repository, images, CRCKPT_KILL_AT="manifest-directory.rename")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert repository.checkpoints() == ()
    checkpoint = ingest(repository, images, described("one"))
    assert checkpoint.statistics.new_bytes < 10 * PAGE_SIZE
    collect_garbage(repository)
    assert verify(repository).damages == ()
    assert restore_files(repository, checkpoint, tmp_path) == files_of(images)


def test_damage_of_a_shared_pack_lists_checkpoints_of_all_jobs(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    kept = [store(repository, tmp_path, of_pages(*PAGES, at), described(f"job-{at}")) for at in (7001, 7002, 7003)]
    alone = store(repository, tmp_path, of_pages(*range(3000, 3100)), described("alone"))
    (shared,) = set.intersection(*map(_digests, kept))
    flip(pack_path(repository, shared), 100_000)
    for found in (verify(repository), verify(repository, [kept[1].id]), repair(repository, [kept[2].id]).now):
        (damage,) = found.damages
        assert set(damage.checkpoints) == {checkpoint.id for checkpoint in kept}
    assert verify(repository, [alone.id]).damages == ()


def test_pack_known_to_be_damaged_is_not_reused(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*PAGES), described("one"))
    flip(pack_path(repository, first.packs[0].digest), 100_000)
    assert verify(repository).damages
    for job in ("two", "three"):
        # In another order: an equal pack would replace the damaged one.
        checkpoint = store(repository, tmp_path, of_pages(*reversed(PAGES)), described(job))
        assert not _digests(checkpoint) & _digests(first)
        assert verify(repository, [checkpoint.id]).damages == ()
    assert checkpoint.statistics.new_bytes < 10 * PAGE_SIZE, "the second job's are intact"


def test_pack_that_is_missing_is_not_reused(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*PAGES), described("one"))
    pack_path(repository, first.packs[0].digest).unlink()
    second = store(repository, tmp_path, of_pages(*PAGES), described("two"))
    assert verify(repository, [second.id]).damages == ()


def test_store_of_an_older_crckpt_is_reused_at_once(tmp_path: Path) -> None:
    """The store has fingerprints but no samples of them."""
    repository = open_store(tmp_path)
    store(repository, tmp_path, of_pages(*PAGES), described("one"))
    for path in (repository.root / "cache/samples").iterdir():
        path.unlink()
    (repository.root / "cache/samples").rmdir()
    repository = open_store(tmp_path)
    assert store(repository, tmp_path, of_pages(*PAGES), described("two")).statistics.new_bytes < 10 * PAGE_SIZE


def test_all_pages_are_stored_without_dedup(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = write_set(tmp_path / "set", of_pages(*PAGES))
    first, second = (ingest(repository, images, described(job), dedup=False) for job in ("one", "two"))
    assert second.statistics.new_bytes == first.statistics.new_bytes > len(PAGES) * PAGE_SIZE


def test_pages_of_older_checkpoints_of_a_job_are_shared(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, of_pages(*PAGES))
    store(repository, tmp_path, of_pages(*range(4001, 4101)))
    again = store(repository, tmp_path, of_pages(*PAGES))
    assert again.statistics.new_bytes < 10 * PAGE_SIZE


def test_pages_are_shared_in_a_memory_backend(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    backend = MemoryBackend(tmp_path / "scratch")
    backend.put(DESCRIPTION, new_description(), "description")
    repository = Repository(backend, read_store_id(backend))
    images = write_set(tmp_path / "set", of_pages(*PAGES))
    first, second = (ingest(repository, images, described(job)) for job in ("one", "two"))
    assert second.statistics.stored_bytes < 0.05 * first.statistics.stored_bytes
    repository.remove([first.id])
    collect_garbage(repository)
    assert restore_files(repository, second, tmp_path) == files_of(images)


def test_long_series_of_two_jobs_stay_small(tmp_path: Path) -> None:
    """The jobs rewrite different pages. After the first job is removed, the second keeps little of it."""
    repository = open_store(tmp_path)
    program = start_program(tmp_path / "images", 1000)
    for number in range(40):
        program.rewrite(0.02)
        ingest(repository, program.directory, described(("one", "two")[number % 2]))
    last = repository.checkpoints(JobName("two"))[-1]
    repository.remove([checkpoint.id for checkpoint in repository.checkpoints() if checkpoint != last])
    collect_garbage(repository)
    assert _stored(repository) < 2 * program.pages * PAGE_SIZE
    assert restore_files(repository, last, tmp_path)["pages-1.img"]
