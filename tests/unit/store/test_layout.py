"""The names of a store's files: digests and ids become names only if they are digests and ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from image_sets import of_pages, open_store, store

from crckpt.errors import IntegrityError
from crckpt.store.layout import DIRECTORIES, checkpoint_directory, fingerprints_name, manifest_name, pack_name


def test_store_has_the_documented_files(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, of_pages(1, 2))
    (pack,) = checkpoint.packs
    names = [manifest_name(checkpoint.id), pack_name(pack.digest), fingerprints_name(pack.digest)]
    assert all((repository.root / name).is_file() for name in names)
    assert all((repository.root / name).is_dir() for name in DIRECTORIES)


@pytest.mark.parametrize("name", [checkpoint_directory, fingerprints_name, manifest_name, pack_name])
@pytest.mark.parametrize("wrong", ["", "..", "../" * 21 + "x", "a" * 63, "A" * 64, "a" * 64 + "\n", "٣" * 64])
def test_invalid_digest_does_not_become_a_file_name(name: Callable[[str], str], wrong: str) -> None:
    """The digest may come from a forged manifest."""
    with pytest.raises(IntegrityError):
        name(wrong)
