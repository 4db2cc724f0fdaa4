"""An index that contradicts itself or its packs is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from image_sets import ONE_PROCESS, described, open_store, restore_files, store, with_changed_manifest
from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.store import verify
from crckpt.store.format.index import Index, StoredFile, encode_index
from crckpt.store.read.contents import contents_of


def _moved(file: StoredFile) -> StoredFile:
    extents = file.extents.copy()
    extents["first"] += 1
    return replace(file, extents=extents)


def _last_page_gone(file: StoredFile) -> StoredFile:
    extents = file.extents.copy()
    extents["count"][-1] -= 1
    return replace(file, extents=extents)


def _last_page_gone_and_shorter(file: StoredFile) -> StoredFile:
    return replace(_last_page_gone(file), bytes=file.bytes - 4096)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("pages-1.img", _moved, "does not hold the pages that pagemap-100.img describes"),
        ("pages-1.img", _last_page_gone_and_shorter, "does not hold the pages that pagemap-100.img describes"),
        (
            "pages-1.img",
            lambda file: replace(file, pagemap="pagemap-7.img"),
            "pagemap-7.img, which describes pages-1.img",
        ),
        ("pages-1.img", _last_page_gone, "too few or too many pages of pages-1.img"),
        ("core-100.img", _moved, "the pages of core-100.img are not in order"),
        ("core-100.img", lambda file: replace(file, name="../x"), "'../x' in the index is not an image name"),
        ("core-100.img", lambda file: replace(file, name="pages-1.img"), "is inconsistent"),
        ("core-100.img", lambda file: replace(file, kind="secret"), "kind 'secret'"),
    ],
)
def test_index_that_contradicts_itself_is_damage(
    name: str, change: Callable[[StoredFile], StoredFile], words: str, tmp_path: Path
) -> None:
    repository = open_store(tmp_path)
    good = store(repository, tmp_path, ONE_PROCESS)
    files = contents_of(repository, good).index.files
    wrong_index = encode_index(Index(tuple(change(file) if file.name == name else file for file in files)))
    # The details of a second checkpoint bring the wrong index into a pack of their own.
    carrier = store(repository, tmp_path, ONE_PROCESS, described(details=wrong_index))
    (details,) = (file for file in contents_of(repository, carrier).index.files if file.kind == "details")
    assert carrier.packs[0].digest == good.packs[0].digest
    index = {"bytes": len(wrong_index), "extents": details.extents.tolist()}
    wrong = with_changed_manifest(repository, carrier, index=index)
    found = verify(repository, [wrong])
    assert [(damage.kind, damage.checkpoints) for damage in found.damages] == [("index", (wrong,))]
    assert words in found.damages[0].what


@pytest.mark.parametrize(
    "index",
    [
        {"bytes": 4000, "extents": [[0, 1, 7, 0]]},
        {"bytes": 4000, "extents": [[0, 1, 0, 100000]]},
        {"bytes": 4000, "extents": []},
        {"bytes": 4000, "extents": [[0, 1, 0, 0]]},
        {"bytes": 3, "extents": [[0, 1, 4294967295, 0]]},
    ],
)
def test_index_that_contradicts_its_packs_is_damage(index: dict[str, object], tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    wrong = repository.get(with_changed_manifest(repository, store(repository, tmp_path, ONE_PROCESS), index=index))
    with pytest.raises(IntegrityError, match=f"checkpoint {wrong.short_id}"):
        restore_files(repository, wrong, tmp_path)
    assert [(damage.kind, damage.checkpoints) for damage in verify(repository).damages] == [("index", (wrong.id,))]
