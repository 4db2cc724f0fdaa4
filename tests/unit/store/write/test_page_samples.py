"""Samples of fingerprints suggest the packs that have pages, take little memory, and do no harm if they are wrong."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
from image_sets import described, flip, of_pages, open_store, restore_files, store
from memory_backend import MemoryBackend

from crckpt.model import MEBIBYTE, PAGE_SIZE, JobName, PackId
from crckpt.store import Repository, collect_garbage
from crckpt.store.backend.local import Backend
from crckpt.store.fingerprints import load_kept_fingerprints, read_key
from crckpt.store.format.extents import Numbers
from crckpt.store.format.samples import ENTRY, decode_samples, encode_samples
from crckpt.store.layout import FINGERPRINTS, SAMPLES, fingerprints_name
from crckpt.store.write.new_packs import pages_in_a_pack
from crckpt.store.write.page_samples import LEAST, ONE_OF, PageSamples

TEBIBYTE = 1 << 40
PAGES = tuple(range(1, 401))


def _suggested(samples: PageSamples, prints: Numbers) -> set[str]:
    """The packs that may have these pages."""
    return {samples.digest(number) for number in samples.find(prints)[1].tolist()}


def _prints(repository: Repository, digest: str) -> Numbers:
    prints = load_kept_fingerprints(repository.backend, read_key(repository.backend), PackId(digest))
    assert prints is not None
    return prints


def _files(repository: Repository) -> list[Path]:
    return sorted((repository.root / SAMPLES).iterdir())


def _open(repository: Repository) -> PageSamples:
    return PageSamples(repository.backend, read_key(repository.backend))


def test_pack_is_suggested_only_for_its_pages(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    one = store(repository, tmp_path, of_pages(*range(1, 300)), described("one")).packs[0].digest
    two = store(repository, tmp_path, of_pages(*range(500, 800)), described("two")).packs[0].digest
    samples = _open(repository)
    for digest, other in ((one, two), (two, one)):
        # Both packs have the page of the details.
        is_shared = np.isin(_prints(repository, digest)[:, 0], _prints(repository, other)[:, 0])
        assert _suggested(samples, _prints(repository, digest)[~is_shared]) == {digest}
    rng = np.random.default_rng(1)
    assert _suggested(samples, rng.integers(0, 1 << 63, (5000, 2)).astype(np.uint64)) == set()
    assert _suggested(samples, np.empty((0, 2), np.uint64)) == set()


def test_small_pack_is_suggested_for_each_of_its_pages(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    # With the page map, the details and the index.
    digest = store(repository, tmp_path, of_pages(*range(1, LEAST - 5))).packs[0].digest
    samples, prints = _open(repository), _prints(repository, digest)
    assert len(prints) <= LEAST
    assert all(_suggested(samples, prints[row : row + 1]) == {digest} for row in range(len(prints)))


def test_samples_of_many_checkpoints_are_in_few_files(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    made = [
        store(repository, tmp_path, of_pages(*range(at, at + 40)), described(f"job-{at}")) for at in range(1, 2000, 50)
    ]
    assert len(_files(repository)) <= (len(made)).bit_length() + 1
    samples = _open(repository)
    for checkpoint in made:
        assert checkpoint.packs[0].digest in _suggested(samples, _prints(repository, checkpoint.packs[0].digest))


def test_lost_and_damaged_samples_are_recreated(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, of_pages(*PAGES), described("one"))
    for spoil in (Path.unlink, lambda path: path.write_bytes(b""), lambda path: flip(path, 3)):
        spoilt = _files(repository)
        for file in spoilt:
            spoil(file)
        again = store(repository, tmp_path, of_pages(*PAGES, 9000), described("two"))
        assert again.statistics.new_bytes + again.statistics.copied_bytes < 9 * PAGE_SIZE
        assert not set(spoilt) & set(_files(repository))
        repository.remove([again.id])


def test_invalid_samples_of_pages_are_ignored(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*PAGES), described("one"))
    (file,) = _files(repository)
    samples = decode_samples(memoryview(file.read_bytes()))
    assert samples is not None
    for seed in range(20):
        entries = np.random.default_rng(seed).permutation(np.frombuffer(samples.entries, np.uint64))
        entries[seed:] |= np.uint64(seed)
        file.write_bytes(encode_samples(samples.key_id, bytes(samples.digests), entries.tobytes()))
        again = store(repository, tmp_path, of_pages(*PAGES[seed:], 5000 + seed), described(f"job-{seed}"))
        assert restore_files(repository, again, tmp_path)["pages-1.img"]
    assert repository.checkpoints(JobName("one")) == (first,)


def test_samples_of_pages_under_another_key_are_replaced(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, of_pages(*PAGES), described("one"))
    old = _files(repository)
    (repository.root / "cache/fingerprints.key").unlink()
    store(repository, tmp_path, of_pages(*range(900, 1300)), described("two"))
    assert not set(old) & set(_files(repository))


def test_gc_removes_samples_of_removed_packs(tmp_path: Path) -> None:
    """A file of samples is kept as long as half of its packs exist."""
    repository = open_store(tmp_path)
    # Of different sizes: equal page maps would be shared.
    made = [store(repository, tmp_path, of_pages(*range(at, at + at)), described(f"{at}")) for at in (80, 200, 500)]
    for checkpoint, left in zip(made, (2, 1, 0), strict=True):
        repository.remove([checkpoint.id])
        collect_garbage(repository)
        assert len(_files(repository)) <= left
        samples = _open(repository)
        for kept in repository.checkpoints():
            assert kept.packs[0].digest in _suggested(samples, _prints(repository, kept.packs[0].digest))


def test_memory_for_a_tebibyte_of_pages_is_bounded(tmp_path: Path) -> None:
    """A dump needs this memory in addition to its images. 64 GiB stand for a TiB, in the smallest packs."""
    share = 16
    pack_pages = pages_in_a_pack(0)
    packs = TEBIBYTE // share // (pack_pages * PAGE_SIZE)
    backend = _store_of(tmp_path, packs, pack_pages // ONE_OF)
    mapped = sum(len(content) for name, content in backend.files.items() if name.startswith(SAMPLES))
    wanted = np.random.default_rng(0).integers(0, 1 << 63, (2048, 2)).astype(np.uint64)
    key = read_key(backend)
    tracemalloc.start()
    try:
        samples = PageSamples(backend, key)
        samples.find(wanted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    print(
        f"for a TiB of pages: {mapped * share / MEBIBYTE:.0f} MiB mapped, {peak * share / MEBIBYTE:.0f} MiB in memory"
    )
    assert mapped * share <= 35 * MEBIBYTE
    assert peak * share <= 48 * MEBIBYTE


def _store_of(scratch: Path, packs: int, entries: int) -> MemoryBackend:
    """A store with the samples of so many packs, and names of their fingerprints."""
    backend = MemoryBackend(scratch)
    digests = [hashlib.sha256(b"%d" % number).digest() for number in range(packs)]
    for digest in digests:
        backend.put(fingerprints_name(PackId(digest.hex())), b"", FINGERPRINTS)
    _put_samples(backend, digests, entries)
    return backend


def _put_samples(backend: Backend, digests: list[bytes], entries: int) -> None:
    key_id = hashlib.sha256(b"samples" + read_key(backend)).digest()[:16]
    rng = np.random.default_rng(2)
    content = rng.integers(0, 1 << 40, entries * len(digests)).astype(np.uint64) << np.uint64(24)
    content |= np.repeat(np.arange(len(digests), dtype=np.uint64), entries)
    assert content.itemsize == ENTRY
    backend.put(f"{SAMPLES}/1-a", encode_samples(key_id, b"".join(digests), np.sort(content).tobytes()), SAMPLES)
