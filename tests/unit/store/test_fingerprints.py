"""Only equal pages count as equal: colliding pages, the secret key, and fingerprints of another kind."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from checkout import TESTS
from colliding_pages import colliding_pages
from image_sets import Area, ImageSet, area, described, files_of, open_store, page, restore_files, store

from crckpt.model import PAGE_SIZE
from crckpt.store import Repository, verify

OLDER_STORE = TESTS / "data/store-with-xxh3"
"""A store with one checkpoint and fingerprints that are xxh3-128 under the seed in its store.json."""

IMAGES = ImageSet({"pagemap-100.img": [area(10, *range(1, 9))]}, {"core-100.img": b"registers"})


def _key(repository: Repository) -> Path:
    return repository.root / "cache/fingerprints.key"


def test_pages_with_colliding_fingerprints_round_trip(tmp_path: Path) -> None:
    """Three stores with different keys are tested, because the pages may not collide under one of the keys."""
    pages = colliding_pages(4096)
    assert len(set(pages)) == len(pages)
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        repository = open_store(tmp_path / name)
        images = ImageSet({"pagemap-100.img": [Area(PAGE_SIZE, tuple(pages))]})
        checkpoint = store(repository, tmp_path / name, images)
        assert restore_files(repository, checkpoint, tmp_path / name)["pages-1.img"] == b"".join(pages)


def test_pages_whose_fingerprints_collide_with_the_parent_round_trip(tmp_path: Path) -> None:
    """The pages collide at the same and at other addresses. A page of the parent replaces only an equal one."""
    pages = colliding_pages(4096)
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        repository = open_store(tmp_path / name)
        for some in (pages[0::2], pages[1::2]):
            images = ImageSet({"pagemap-100.img": [Area(PAGE_SIZE, tuple(some))]})
            checkpoint = store(repository, tmp_path / name, images)
            assert restore_files(repository, checkpoint, tmp_path / name)["pages-1.img"] == b"".join(some)


def test_fingerprint_key_is_private_to_the_store(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        repository = open_store(tmp_path / name)
        checkpoint = store(repository, tmp_path / name, IMAGES)
        keys.append(_key(repository).read_bytes())
        assert len(keys[-1]) == 32
        assert stat.S_IMODE(_key(repository).stat().st_mode) == 0o600
        others = (path for path in repository.root.rglob("*") if path.is_file() and path != _key(repository))
        prints = _cache(repository, checkpoint.packs[0].digest).read_bytes()[:-32]
        for path in others:
            assert keys[-1] not in path.read_bytes()
            assert path.parent.name == "fingerprints" or prints[:16] not in path.read_bytes()
    assert keys[0] != keys[1]


@pytest.mark.parametrize("content", [None, b"", b"short", bytes(33)])
def test_store_with_another_key_makes_other_fingerprints(tmp_path: Path, content: bytes | None) -> None:
    """Existing fingerprints are not trusted, but equal pages are still found."""
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, IMAGES)
    cache = _cache(repository, first.packs[0].digest)
    before, kept = _key(repository).read_bytes(), cache.read_bytes()
    _key(repository).unlink()
    if content is not None:
        _key(repository).write_bytes(content)
    assert store(repository, tmp_path, IMAGES).statistics.new_bytes == 0
    assert len(_key(repository).read_bytes()) == 32
    assert _key(repository).read_bytes() != before
    assert len(cache.read_bytes()) == len(kept)
    assert cache.read_bytes()[:16] != kept[:16]


def test_fingerprints_of_another_function_are_recomputed(tmp_path: Path) -> None:
    """The stored fingerprints are computed again and not trusted."""
    shutil.copytree(OLDER_STORE, tmp_path / "store")
    (tmp_path / "store").chmod(0o700)
    repository = open_store(tmp_path)
    (first,) = repository.checkpoints()
    cache = _cache(repository, first.packs[0].digest)
    kept = cache.read_bytes()
    assert verify(repository).damages == ()
    expected = {"pages-1.img": b"".join(map(page, range(1, 9))), "core-100.img": b"registers"}
    assert expected.items() <= restore_files(repository, first, tmp_path).items()
    assert cache.read_bytes() == kept
    second = store(repository, tmp_path, IMAGES, described())
    assert (second.parent, second.statistics.new_bytes) == (first.id, 0)
    assert len(cache.read_bytes()) == len(kept)
    assert not _prints(cache.read_bytes()) & _prints(kept)
    assert restore_files(repository, second, tmp_path) == files_of(tmp_path / "images-0")


def _cache(repository: Repository, digest: str) -> Path:
    return repository.root / "cache/fingerprints" / digest


def _prints(content: bytes) -> set[bytes]:
    return {content[at : at + 16] for at in range(0, len(content) - 32, 16)}
