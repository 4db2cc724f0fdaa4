"""Packs are checked frame by frame, and checkpoints against their packs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from image_sets import ONE_PROCESS, flip, open_store, pack_path, store, with_changed_manifest

from crckpt.errors import Interrupted
from crckpt.store import Checkpoint, Repository
from crckpt.store.upkeep.audit import PackAudit, audit_contents, audit_packs


def audit(repository: Repository, *checkpoints: Checkpoint) -> PackAudit:
    seen: list[tuple[int, int]] = []
    found = audit_packs(repository.backend, list(checkpoints), lambda done, total: seen.append((done, total)))
    assert sorted(seen) == seen
    assert seen[-1] == (found.bytes, found.bytes)
    return found


@contextmanager
def flipped(path: Path, offset: int) -> Iterator[None]:
    flip(path, offset)
    try:
        yield
    finally:
        flip(path, offset)


def test_audit_finds_no_damage_in_an_intact_checkpoint(one_checkpoint: tuple[Repository, Checkpoint]) -> None:
    repository, checkpoint = one_checkpoint
    # The checkpoint is passed twice, but its pack is read once.
    packs = audit(repository, checkpoint, checkpoint)
    (use,) = checkpoint.packs
    assert (packs.count, packs.bytes) == (1, pack_path(repository, use.digest).stat().st_size)
    assert audit_contents(repository.backend, checkpoint, packs) == []
    assert list(packs.damages()) == []


def test_damaged_frame_is_damage_of_its_pack(one_checkpoint: tuple[Repository, Checkpoint]) -> None:
    """The damage is reported once, and not as damage of the index."""
    repository, checkpoint = one_checkpoint
    (use,) = checkpoint.packs
    with flipped(pack_path(repository, use.digest), 100):
        packs = audit(repository, checkpoint)
        assert audit_contents(repository.backend, checkpoint, packs) == []
        (damage,) = packs.damages()
    assert (damage.kind, damage.name, damage.checkpoints) == ("pack", use.digest, (checkpoint.id,))
    assert "frame 0" in damage.what


def test_damage_of_a_pack_is_reported_before_it_is_known_which_checkpoints_need_it(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, ONE_PROCESS)
    (use,) = first.packs
    with flipped(pack_path(repository, use.digest), 100):
        packs = audit(repository, first)
        (damage,) = packs.damages()
    # The audit does not ask which checkpoints need the pack.
    assert damage.checkpoints == ()


@pytest.mark.parametrize("how", ["gone", "cut", "table"])
def test_unreadable_pack_is_damage(one_checkpoint: tuple[Repository, Checkpoint], how: str) -> None:
    repository, checkpoint = one_checkpoint
    path = pack_path(repository, checkpoint.packs[0].digest)
    content = path.read_bytes()
    mode = path.stat().st_mode & 0o777
    path.chmod(0o600)
    try:
        match how:
            case "gone":
                path.unlink()
            case "cut":
                path.write_bytes(content[:-3])
            case "table":
                flip(path, len(content) - 30)
        packs = audit(repository, checkpoint)
        assert audit_contents(repository.backend, checkpoint, packs) == []
        (damage,) = packs.damages()
        assert (damage.name, damage.checkpoints) == (checkpoint.packs[0].digest, (checkpoint.id,))
    finally:
        path.write_bytes(content)
        path.chmod(mode)


def test_manifest_with_its_index_in_another_pack_is_damage(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ONE_PROCESS)
    (_, count, pack, _), *_ = checkpoint.index.extents
    wrong = {"bytes": checkpoint.index.bytes, "extents": [[0, count, pack, 1 << 40]]}
    changed = repository.get(with_changed_manifest(repository, checkpoint, index=wrong))
    (damage,) = audit_contents(repository.backend, changed, audit(repository, changed))
    assert (damage.kind, damage.name, damage.checkpoints) == ("index", changed.id, (changed.id,))
    assert "refers to pages that pack" in damage.what
    others = {"bytes": checkpoint.index.bytes, "extents": [[0, count, 7, 0]]}
    changed = repository.get(with_changed_manifest(repository, checkpoint, index=others))
    (damage,) = audit_contents(repository.backend, changed, audit(repository, changed))
    assert damage.what == "it refers to packs that its manifest does not name"


def test_page_map_of_another_checkpoint_is_damage(tmp_path: Path) -> None:
    """A forged checkpoint has the index of one and the packs of another."""
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ONE_PROCESS)
    (first, count, pack, page), *others = checkpoint.index.extents
    index = {"bytes": checkpoint.index.bytes, "extents": [(first, count, pack, page + 1), *others]}
    changed = repository.get(with_changed_manifest(repository, checkpoint, index=index))
    (damage,) = audit_contents(repository.backend, changed, audit(repository, changed))
    assert damage.kind == "index"


def test_interruption_is_not_reported_as_damage(
    one_checkpoint: tuple[Repository, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` would report the interruption as damage, and `verify --repair` would try to repair it."""
    repository, checkpoint = one_checkpoint

    def interrupted(_contents: object) -> None:
        raise Interrupted("interrupted by SIGINT")

    packs = audit(repository, checkpoint)
    monkeypatch.setattr("crckpt.store.upkeep.audit._check_pagemaps", interrupted)
    with pytest.raises(Interrupted):
        audit_contents(repository.backend, checkpoint, packs)
