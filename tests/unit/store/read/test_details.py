"""Details of a checkpoint are read by themselves, from its packs only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from image_sets import (
    ImageSet,
    area,
    described,
    files_of,
    flip,
    of_pages,
    open_store,
    packs,
    restore_files,
    store,
)

from crckpt.errors import IntegrityError
from crckpt.store import (
    Checkpoint,
    Repository,
    collect_garbage,
    details_of,
    file_names,
    read_file,
)
from crckpt.store.read.details import cache_details, read_details, read_recent_details


def test_single_files_and_details_are_read_without_the_rest_of_the_checkpoint(tmp_path: Path) -> None:
    files = {"files.img": bytes(range(256)) * 30, "empty.img": b"", "details": b"a file of that name"}
    images = ImageSet({"pagemap-100.img": [area(5, 1, 0, 2)]}, files)
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, images, described(details=b'{"secret": 1}'))
    expected = files_of(tmp_path / "images-0")
    assert {name: read_file(repository, checkpoint, name) for name in file_names(repository, checkpoint)} == expected
    assert details_of(repository, checkpoint) == b'{"secret": 1}'
    assert restore_files(repository, checkpoint, tmp_path) == expected


def test_details_with_secrets_are_only_in_the_pack(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet(), described(details=b"--password=hunter2"))
    manifest = (repository.root / "checkpoints" / checkpoint.id / "manifest.json").read_bytes()
    assert b"hunter2" not in manifest
    assert details_of(repository, checkpoint) == b"--password=hunter2"


PROGRAM = {"executable": "/usr/bin/python3", "called": "python3", "script": "/srv/x.py", "unit": ""}


def stored(base: Path, **details: object) -> tuple[Repository, Checkpoint]:
    """A checkpoint, of which is cached what a dump needs."""
    repository = open_store(base)
    root = {"pid": 100, "uids": [5, 5, 5, 5], "command_line": ["x", "--password=hunter2"], "directory": "/"}
    document = {"processes": [root, root | {"pid": 7}], "program": PROGRAM, "files": {}} | details
    content = json.dumps(document).encode()
    checkpoint = store(repository, base, of_pages(1), described(details=content))
    with repository.transaction() as transaction:
        cache_details(repository, checkpoint, content, transaction)
    return repository, checkpoint


def test_details_that_a_dump_checks_are_cached(tmp_path: Path) -> None:
    repository, checkpoint = stored(tmp_path)
    for pack in packs(repository):
        pack.unlink()
    assert read_recent_details(repository, checkpoint) == {
        "processes": [{"pid": 100, "uids": [5, 5, 5, 5]}],
        "program": PROGRAM,
    }


def test_secrets_are_not_cached(tmp_path: Path) -> None:
    repository, _ = stored(tmp_path)
    assert b"hunter2" not in (repository.root / "cache/job-job").read_bytes()
    (tmp_path / "code").mkdir()
    repository, checkpoint = stored(tmp_path / "code", program=PROGRAM | {"script": "-c login('hunter2')"})
    assert not (repository.root / "cache/job-job").exists()
    assert read_recent_details(repository, checkpoint) == read_details(repository, checkpoint)


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b'{"checkpoint": 5, "details": {}}'])
def test_damaged_cache_is_ignored(tmp_path: Path, content: bytes) -> None:
    repository, checkpoint = stored(tmp_path)
    (repository.root / "cache/job-job").write_bytes(content)
    assert read_recent_details(repository, checkpoint) == read_details(repository, checkpoint)


def test_cache_of_another_checkpoint_is_ignored(tmp_path: Path) -> None:
    repository, _ = stored(tmp_path)
    other = store(repository, tmp_path, of_pages(2), described(details=b'{"program": null}'))
    assert read_recent_details(repository, other) == {"program": None}
    (pack,) = {path for path in packs(repository) if path.stem in {use.digest for use in other.packs}}
    for place in range(20, pack.stat().st_size - 200, 50):
        flip(pack, place)
    with pytest.raises(IntegrityError):
        read_recent_details(Repository.open(repository.root), other)


def test_gc_removes_the_cache_of_a_removed_job(tmp_path: Path) -> None:
    repository, checkpoint = stored(tmp_path)
    assert collect_garbage(repository).leftovers == ()
    repository.remove([checkpoint.id])
    assert "cache/job-job" in collect_garbage(repository).leftovers
    assert not (repository.root / "cache/job-job").exists()
