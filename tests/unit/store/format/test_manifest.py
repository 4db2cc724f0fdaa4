"""Manifests: the keys are pinned, the id is the SHA-256, and what is written is read."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_sets import HOST, TREE, ImageSet, area, described, manifest_path, open_store, store
from msgspec.structs import replace

from crckpt.errors import StoreUnusable
from crckpt.model import CheckpointId, DumpOptions, JobName, PackId, Statistics
from crckpt.store import Checkpoint, IndexPlace, PackUse
from crckpt.store.format.manifest import seal, unseal

U32, U63 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 63) - 1)
KEYS = {
    "config_digest", "created", "host", "index", "job", "note", "options", "packs", "parent", "run_id", "schema",
    "sequence", "statistics", "stopped", "tree",
}  # fmt: skip


def test_manifest_is_readable_and_named_by_its_digest(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    created = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=timezone(timedelta(hours=2)))
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(1, 1)]}), described(created=created))
    manifest = (repository.root / "checkpoints" / checkpoint.id / "manifest.json").read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == checkpoint.id
    document = json.loads(manifest)
    assert document.keys() == KEYS
    assert document["schema"] == 1
    assert document["created"] == "2026-03-04T03:06:07.000008+00:00"
    assert document["packs"] == [{"digest": checkpoint.packs[0].digest, "frames": 1, "pages": 4}]
    assert document["tree"][0] == {"comm": "program", "pid": 100, "ppid": 1, "threads": [100, 101]}
    lines = manifest.decode().splitlines()
    assert len(lines) == len(KEYS) + 2
    assert lines[1:-1] == sorted(lines[1:-1])
    assert repository.get(checkpoint.id) == checkpoint


@given(
    note=st.none() | st.text(),
    job=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True),
    created=st.datetimes(timezones=st.just(UTC)).filter(lambda time: 2 <= time.year <= 9998),
    extents=st.lists(st.tuples(U63, U32, U32, U63), max_size=3),
    external=st.lists(st.text().filter(lambda word: "\0" not in word), max_size=3),
    number=st.floats(0, 1e9),
)
def test_sealed_checkpoint_round_trips(
    note: str | None,
    job: str,
    created: datetime,
    extents: list[tuple[int, int, int, int]],
    external: list[str],
    number: float,
) -> None:
    draft = Checkpoint(
        id=CheckpointId(""),
        job=JobName(job),
        created=created,
        parent=CheckpointId("e" * 64),
        host=HOST,
        options=DumpOptions(external=tuple(external)),
        tree=TREE,
        note=note,
        run_id=None,
        stopped=True,
        packs=(PackUse(PackId("a" * 64), 3, 4),),
        index=IndexPlace(77, tuple(extents)),
        statistics=Statistics(number, 2.0, 3.0, 4, 5, 6, 7, 8, 9),
        config_digest=None,
    )
    checkpoint, manifest = seal(draft)
    assert unseal(manifest, checkpoint.id) == checkpoint


def _sealed(document: dict[str, object]) -> tuple[bytes, CheckpointId]:
    manifest = json.dumps(document).encode()
    return manifest, CheckpointId(hashlib.sha256(manifest).hexdigest())


def test_note_with_invalid_encoding_is_read(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    note = os.fsdecode(b"caf\xe9")
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(1, 1)]}), replace(described(), note=note))
    assert repository.get(checkpoint.id) == checkpoint
    assert checkpoint.note == note


def test_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(1, 1)]}), described())
    document = json.loads(manifest_path(repository, checkpoint.id).read_bytes())
    assert unseal(*_sealed(document)).tree == checkpoint.tree
    without = {key: value for key, value in document.items() if key != "index"}
    for other in (without, {**document, "tree": 5}, {**document, "packs": [{}]}, {**document, "host": {}}, {}):
        with pytest.raises(StoreUnusable, match="written by another version"):
            unseal(*_sealed(other))
    with pytest.raises(StoreUnusable, match="has schema 2; this crckpt knows schema 1"):
        unseal(*_sealed({"schema": 2}))
