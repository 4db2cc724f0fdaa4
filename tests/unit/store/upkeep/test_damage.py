"""One flipped bit anywhere is found by verify, and is never restored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sets import (
    ONE_PROCESS,
    ImageSet,
    area,
    described,
    flip,
    manifest_path,
    of_pages,
    open_store,
    pack_path,
    packs,
    restore_files,
    seal_manifest,
    store,
    with_changed_manifest,
)

from crckpt.cli.app import run
from crckpt.errors import IntegrityError, NoSuchCheckpoint, StoreUnusable
from crckpt.store import Checkpoint, Repository, details_of, materialise, read_file, verify


@settings(max_examples=examples(150))
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_flipped_bit_of_a_pack_is_found(one_checkpoint: tuple[Repository, Checkpoint], share: float, bit: int) -> None:
    repository, checkpoint = one_checkpoint
    pack = packs(repository)[0]
    offset = int(share * pack.stat().st_size)
    flip(pack, offset, bit)
    try:
        found = verify(Repository.open(repository.root))
        assert [(damage.kind, damage.name) for damage in found.damages] == [("pack", checkpoint.packs[0].digest)]
        assert found.lost == (checkpoint.id,)
        with pytest.raises(IntegrityError, match=f"checkpoint {checkpoint.short_id} is damaged: pack {pack.stem[:12]}"):
            restore_files(Repository.open(repository.root), checkpoint, repository.root.parent)
    finally:
        flip(pack, offset, bit)
        for left in repository.root.parent.glob("out-*"):
            shutil.rmtree(left)


@settings(max_examples=examples(60))
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_flipped_bit_of_a_manifest_is_found(
    one_checkpoint: tuple[Repository, Checkpoint], share: float, bit: int
) -> None:
    repository, checkpoint = one_checkpoint
    manifest = repository.root / "checkpoints" / checkpoint.id / "manifest.json"
    offset = int(share * manifest.stat().st_size)
    flip(manifest, offset, bit)
    try:
        with pytest.raises(IntegrityError, match=f"manifest of checkpoint {checkpoint.short_id} is damaged"):
            repository.get(checkpoint.id)
        assert [(damage.kind, damage.name) for damage in verify(repository).damages] == [("manifest", checkpoint.id)]
        assert repository.checkpoints() == ()
        assert [bad.id for bad in repository.unreadable()] == [checkpoint.id]
        assert repository.resolve(checkpoint.short_id) == checkpoint.id
    finally:
        flip(manifest, offset, bit)


@pytest.mark.parametrize("damage", [b"", bytes(700), b"garbage\n", None])
def test_damaged_manifest_affects_only_its_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes | None
) -> None:
    """The manifest may be the newest of its job; the newest of another job is known."""
    repository = open_store(tmp_path)
    bad = store(repository, tmp_path, ONE_PROCESS, described("bad"))
    good = store(repository, tmp_path, ONE_PROCESS, described("good"))
    if damage is None:
        manifest_path(repository, bad.id).unlink()
    else:
        manifest_path(repository, bad.id).write_bytes(damage)
    assert [each.job for each in repository.unreadable()] == ["bad"]
    assert repository.resolve("good") == good.id
    with pytest.raises(NoSuchCheckpoint):
        repository.resolve("bad")
    assert run(["verify", "good", "--store", str(repository.root)]) == 0
    assert "1 checkpoint OK" in capsys.readouterr().out
    older = store(repository, tmp_path, ONE_PROCESS, described("bad"))
    with pytest.raises(IntegrityError, match="it may be the newest of bad"):
        repository.resolve("bad")
    assert repository.resolve(older.short_id) == older.id


def test_commands_on_a_damaged_store_exit_with_13_and_name_the_damage(
    one_checkpoint: tuple[Repository, Checkpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, checkpoint = one_checkpoint
    pack = packs(repository)[0]
    flip(pack, 1000)
    try:
        arguments = ["--store", str(repository.root), "--json"]
        assert run(["verify", "--all", *arguments]) == 13
        (damage,) = json.loads(capsys.readouterr().out)["result"]["damages"]
        assert (damage["name"], damage["checkpoints"]) == (pack.stem, [checkpoint.id])
        assert run(["export", "job", str(tmp_path / "out"), *arguments]) == 13
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == 13
        assert f"checkpoint {checkpoint.short_id} is damaged: pack {pack.stem[:12]}" in error["message"]
        assert not list(tmp_path.rglob("*.img"))
    finally:
        flip(pack, 1000)


@pytest.mark.parametrize("size", [0, 7, 31, 5000, -1, -25, -80])
def test_truncated_pack_is_damage(one_checkpoint: tuple[Repository, Checkpoint], size: int, tmp_path: Path) -> None:
    repository, checkpoint = one_checkpoint
    pack = packs(repository)[0]
    content = pack.read_bytes()
    pack.write_bytes(content[:size])
    try:
        assert verify(repository).lost == (checkpoint.id,)
        with pytest.raises(IntegrityError, match="pack"):
            materialise(Repository.open(repository.root), checkpoint, tmp_path)
    finally:
        pack.write_bytes(content)


def test_missing_or_longer_pack_is_damage(one_checkpoint: tuple[Repository, Checkpoint], tmp_path: Path) -> None:
    repository, checkpoint = one_checkpoint
    pack = packs(repository)[0]
    content = pack.read_bytes()
    for change in (pack.unlink, lambda: pack.write_bytes(content + b"\0")):
        change()
        try:
            assert verify(repository).lost == (checkpoint.id,)
            with pytest.raises(IntegrityError, match="pack"):
                read_file(Repository.open(repository.root), checkpoint, "core-100.img")
        finally:
            pack.write_bytes(content)
    assert verify(repository).damages == ()


def test_intact_pack_under_another_name_is_damage(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    one = store(repository, tmp_path, ONE_PROCESS, described("one", details=b"1"))
    two = store(repository, tmp_path, of_pages(*range(500, 600)), described("two", details=b"2"))
    path = pack_path(repository, one.packs[0].digest)
    shutil.copy(pack_path(repository, two.packs[0].digest), path)
    with pytest.raises(IntegrityError, match="frame table differs from its name"):
        details_of(repository, one)
    assert verify(repository).lost == (one.id,)


def test_damage_affects_only_checkpoints_that_need_the_frame(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    big = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(1, 400))]}))
    few = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(300, 400))]}))
    assert big.packs[0].digest == few.packs[0].digest
    pack = pack_path(repository, big.packs[0].digest)
    flip(pack, 100)
    found = verify(repository)
    assert [damage.checkpoints for damage in found.damages] == [(big.id,)]
    assert "frame 0: its SHA-256 does not match" in found.damages[0].what
    with pytest.raises(IntegrityError, match="frame 0: its SHA-256 does not match"):
        restore_files(repository, big, tmp_path)
    assert len(restore_files(repository, few, tmp_path)["pages-1.img"]) == 100 * 4096
    assert verify(repository, [few.id]).lost == (big.id,)


def test_manifest_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    newer = with_changed_manifest(repository, store(repository, tmp_path, ONE_PROCESS), schema=2)
    with pytest.raises(StoreUnusable, match="has schema 2; this crckpt knows schema 1"):
        repository.get(newer)
    assert [bad.id for bad in repository.unreadable()] == [newer]


@pytest.mark.parametrize("manifest", [b"[]", b"{}", b'{"schema": 1}', b'{"schema": 1, "job": "x", "index": 3}'])
def test_manifest_of_another_version_is_refused(manifest: bytes, tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with pytest.raises(StoreUnusable, match="another version of crckpt"):
        repository.get(seal_manifest(repository, manifest))
