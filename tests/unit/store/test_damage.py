"""Fingerprints of packs that may be damaged are forgotten; those of others stay."""

from __future__ import annotations

from pathlib import Path

from image_sets import described, of_pages, open_store, store

from crckpt.model import PackId
from crckpt.store.damage import forget_fingerprints


def test_only_fingerprints_of_the_named_packs_are_removed(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*range(1, 100)), described("one"))
    second = store(repository, tmp_path, of_pages(*range(200, 300)), described("two"))
    known = repository.root / "cache/fingerprints"
    assert {path.name for path in known.iterdir()} == {first.packs[0].digest, second.packs[0].digest}
    forget_fingerprints(repository.backend, [first.packs[0].digest, PackId("0" * 64)])
    assert [path.name for path in known.iterdir()] == [second.packs[0].digest]
