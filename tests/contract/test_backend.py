"""The contract of a store backend: every backend passes these tests, including the one in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from memory_backend import MemoryBackend

from crckpt.errors import IntegrityError, StoreLocked
from crckpt.model import CheckpointId, JobName, PackId
from crckpt.store.backend.directory import prepare_directory
from crckpt.store.backend.local import Backend
from crckpt.store.layout import (
    CHECKPOINTS,
    FINGERPRINT_KEY,
    FINGERPRINTS,
    PACKS,
    PENDING,
    TAGS,
    checkpoint_directory,
    fingerprints_name,
    manifest_name,
    pack_name,
)
from crckpt.store.repository import new_description

ONE, TWO = CheckpointId("1" * 64), CheckpointId("2" * 64)
TAG = f"{TAGS}/job/good"
RECORD = f"{PENDING}/1-abc"
PLACES = (FINGERPRINT_KEY, fingerprints_name(PackId(ONE)), manifest_name(ONE), pack_name(PackId(ONE)), RECORD, TAG)
"""A file of each kind that a store has."""

WHAT = "thing"


def _local(base: Path, name: str) -> Backend:
    prepare_directory(base / name, new_description())
    return Backend(base / name)


def _in_memory(base: Path, name: str) -> MemoryBackend:
    (base / name).mkdir()
    return MemoryBackend(base / name)


Maker = Callable[[Path, str], Backend]
BACKENDS: dict[str, Maker] = {"local": _local, "memory": _in_memory}


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Maker:
    """What makes a new, empty backend of each kind."""
    return BACKENDS[request.param]


@pytest.fixture
def backend(make: Maker, tmp_path: Path) -> Backend:
    """An empty backend."""
    return make(tmp_path, "one")


def _finished(backend: Backend, content: bytes) -> Path:
    """A temporary file of the backend that is written completely, with that content."""
    path = backend.scratch / f"finished-{len(list(backend.scratch.iterdir()))}"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", PLACES)
def test_file_that_was_stored_is_read_back_unchanged(backend: Backend, name: str) -> None:
    assert not backend.exists(name)
    for content in (b"first", b"another", b""):
        backend.put(name, content, WHAT)
        assert backend.exists(name)
        assert backend.read(name, 100) == content
    assert list(backend.scratch.iterdir()) == []


@pytest.mark.parametrize("name", PLACES)
def test_reading_a_missing_name_raises_file_not_found(backend: Backend, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        backend.read(name, 100)
    with pytest.raises(FileNotFoundError), backend.open(name):
        pass
    with pytest.raises(FileNotFoundError):
        backend.map(name)
    with pytest.raises(FileNotFoundError):
        backend.remove(name, WHAT)
    with pytest.raises(FileNotFoundError):
        backend.remove_tree(name, WHAT)


def test_read_refuses_a_file_above_the_size_limit(backend: Backend) -> None:
    backend.put(TAG, b"12345", WHAT)
    assert backend.read(TAG, 5) == b"12345"
    with pytest.raises(IntegrityError, match="5 bytes"):
        backend.read(TAG, 4)


def test_ranges_of_bytes_of_a_stored_file_are_read(backend: Backend) -> None:
    content = bytes(range(256)) * 40
    backend.put_files({pack_name(PackId(ONE)): _finished(backend, content)}, WHAT)
    with backend.open(pack_name(PackId(ONE))) as file:
        assert file.size == len(content)
        assert file.read(10, 250) == content[250:260]
        assert file.read(10, len(content) - 4) == content[-4:]
        assert file.read(10, len(content)) == b""
        into = bytearray(20)
        assert file.read_into(memoryview(into)[5:15], 1000) == 10
        assert into == bytes(5) + content[1000:1010] + bytes(5)
        assert file.read_into(memoryview(into), len(content) - 3) == 3
        file.read_ahead(0, len(content))


def test_open_file_stays_readable_after_replace_and_remove(backend: Backend) -> None:
    backend.put(TAG, b"old", WHAT)
    with backend.open(TAG) as file:
        backend.put(TAG, b"new", WHAT)
        assert file.read(3, 0) == b"old"
        backend.remove(TAG, WHAT)
        assert file.read(3, 0) == b"old"


def test_stored_file_is_mapped(backend: Backend) -> None:
    backend.put(fingerprints_name(PackId(ONE)), b"0123456789", WHAT)
    content = backend.map(fingerprints_name(PackId(ONE)))
    backend.remove(fingerprints_name(PackId(ONE)), WHAT)
    assert bytes(content[2:5]) == b"234"


def test_names_in_a_directory_are_listed_in_order(backend: Backend) -> None:
    for directory in (CHECKPOINTS, PACKS, TAGS, FINGERPRINTS, PENDING, f"{TAGS}/job"):
        assert backend.names_in(directory) == []
    for name in ("c", "a", "b"):
        backend.put(f"{TAGS}/job/{name}", b"x", WHAT)
    backend.put(f"{TAGS}/other/a", b"x", WHAT)
    assert backend.names_in(f"{TAGS}/job") == ["a", "b", "c"]
    assert backend.names_in(TAGS) == ["job", "other"]
    backend.put_files({pack_name(PackId(digest)): _finished(backend, b"x") for digest in (ONE, TWO)}, WHAT)
    assert backend.names_in(PACKS) == ["11", "22"]
    assert backend.names_in(f"{PACKS}/11") == [f"{ONE}.pack"]
    assert {"packs", "refs"} <= set(backend.names_in(""))


def test_directory_exists_once_a_file_is_in_it(backend: Backend) -> None:
    backend.put_if_absent(manifest_name(ONE), b"x", "", WHAT)
    assert backend.exists(checkpoint_directory(ONE))
    assert not backend.exists(checkpoint_directory(TWO))


def test_label_of_a_manifest_is_stored_and_removed_with_it(backend: Backend) -> None:
    backend.put_if_absent(manifest_name(ONE), b"x", "job-one", WHAT)
    assert backend.names_in(checkpoint_directory(ONE)) == ["job-one", "manifest.json"]
    backend.remove_at_once([checkpoint_directory(ONE)], WHAT)
    assert backend.names_in(CHECKPOINTS) == []


def test_put_if_absent_keeps_the_existing_file(backend: Backend) -> None:
    backend.put_if_absent(manifest_name(ONE), b"first", "", WHAT)
    with pytest.raises(FileExistsError):
        backend.put_if_absent(manifest_name(ONE), b"second", "", WHAT)
    assert backend.read(manifest_name(ONE), 100) == b"first"
    assert list(backend.scratch.iterdir()) == []


def test_concurrent_put_if_absent_succeeds_once(backend: Backend) -> None:
    start, won = threading.Barrier(8), list[int]()

    def race(number: int) -> None:
        start.wait()
        try:
            backend.put_if_absent(manifest_name(ONE), b"%d" % number, "", WHAT)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"%d" % number for number in won] == [backend.read(manifest_name(ONE), 100)]


def test_put_files_moves_finished_files_into_the_backend(backend: Backend) -> None:
    files = {pack_name(PackId(digest)): _finished(backend, digest.encode()) for digest in (ONE, TWO)}
    backend.put_files(files, WHAT)
    assert [backend.read(name, 100) for name in files] == [ONE.encode(), TWO.encode()]
    again, other = _finished(backend, ONE.encode()), _finished(backend, b"what it should be")
    backend.put_files({pack_name(PackId(ONE)): again}, WHAT)
    backend.put_files({pack_name(PackId(TWO)): other}, WHAT)
    assert [backend.read(name, 100) for name in files] == [ONE.encode(), b"what it should be"]
    backend.put_derived(fingerprints_name(PackId(ONE)), _finished(backend, b"derived"), WHAT)
    assert backend.read(fingerprints_name(PackId(ONE)), 100) == b"derived"
    assert list(backend.scratch.iterdir()) == []


def test_stored_file_is_removed(backend: Backend) -> None:
    for name in PLACES:
        backend.put(name, b"x", WHAT)
    backend.remove(TAG, WHAT)
    backend.sync_names(f"{TAGS}/job", WHAT)
    assert not backend.exists(TAG)
    assert all(backend.exists(name) for name in PLACES if name != TAG)


def test_remove_tree_removes_everything_below_a_name(backend: Backend) -> None:
    for name in PLACES:
        backend.put(name, bytes(5000), WHAT)
    assert backend.disk_usage(pack_name(PackId(ONE))) >= 5000
    assert backend.disk_usage(TAGS) >= 5000
    backend.remove_tree(pack_name(PackId(ONE)), WHAT)
    backend.remove_tree(f"{TAGS}/job", WHAT)
    assert not backend.exists(pack_name(PackId(ONE)))
    assert not backend.exists(TAG)
    assert backend.exists(RECORD)


def test_several_directories_are_removed_at_once(backend: Backend) -> None:
    for checkpoint_id in (ONE, TWO):
        backend.put_if_absent(manifest_name(CheckpointId(checkpoint_id)), b"x", "", WHAT)
    backend.put(f"{checkpoint_directory(ONE)}/manifest.sig", b"x", WHAT)
    backend.remove_at_once([checkpoint_directory(ONE)], WHAT)
    assert backend.names_in(CHECKPOINTS) == [TWO]
    assert list(backend.scratch.iterdir()) == []


def test_backend_reports_no_leftovers_without_a_crash(backend: Backend) -> None:
    for name in PLACES:
        backend.put(name, b"x", WHAT)
    with backend.locked(alone=True, timeout=0):
        assert set(backend.find_leftovers()) == set()


def test_backends_of_two_stores_are_not_the_same(make: Maker, tmp_path: Path) -> None:
    one, other = make(tmp_path, "one"), make(tmp_path, "other")
    assert one.is_same(one)
    assert not one.is_same(other)
    assert one.location != other.location


Lock = Callable[[Backend, float], AbstractContextManager[None]]
SHARED: Lock = lambda backend, timeout: backend.locked(alone=False, timeout=timeout)  # noqa: E731
ALONE: Lock = lambda backend, timeout: backend.locked(alone=True, timeout=timeout)  # noqa: E731
RESTORE: Lock = lambda backend, timeout: backend.restores_locked(JobName("job"), timeout)  # noqa: E731


@pytest.mark.parametrize(("first", "second"), [(SHARED, ALONE), (ALONE, SHARED), (ALONE, ALONE), (RESTORE, RESTORE)])
def test_exclusive_lock_of_a_backend_excludes_others(backend: Backend, first: Lock, second: Lock) -> None:
    with first(backend, 0), pytest.raises(StoreLocked), second(backend, 0.05):
        pass
    with second(backend, 0):
        pass


def test_shared_locks_of_a_backend_exclude_an_exclusive_lock(backend: Backend) -> None:
    with SHARED(backend, 0), SHARED(backend, 0), pytest.raises(StoreLocked), ALONE(backend, 0):
        pass
    with ALONE(backend, 0):
        pass


def test_several_restores_share_the_lock_of_a_job_and_exclude_one_that_needs_it_alone(backend: Backend) -> None:
    """A restore that ends releases only its own share of the lock."""
    with ExitStack() as first, backend.restores_locked(JobName("job"), 0, alone=False):
        first.enter_context(backend.restores_locked(JobName("job"), 0, alone=False))
        for _ in range(2):
            with pytest.raises(StoreLocked), RESTORE(backend, 0):
                pass
            first.close()
    with RESTORE(backend, 0), pytest.raises(StoreLocked), backend.restores_locked(JobName("job"), 0.05, alone=False):
        pass


def test_restores_of_different_jobs_do_not_block_each_other(backend: Backend) -> None:
    job, other = (backend.restores_locked(JobName(name), 0) for name in ("job", "other"))
    with job, other, backend.locked(alone=False, timeout=0):
        pass


def test_only_one_thread_has_the_turn_of_a_directory_at_a_time(backend: Backend) -> None:
    inside, most = 0, 0

    def work() -> Iterator[None]:
        nonlocal inside, most
        with backend.turn_taken(CHECKPOINTS, 20):
            inside += 1
            most = max(most, inside)
            backend.put(TAG, b"x", WHAT)
            inside -= 1
        yield

    threads = [threading.Thread(target=lambda: list(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    with backend.turn_taken(CHECKPOINTS, 20), backend.turn_taken(CHECKPOINTS, 0.05):
        pass
