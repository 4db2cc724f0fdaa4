"""rm and gc: what is named stays, all else goes, and nothing goes while something is unclear."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from image_sets import (
    described,
    flip,
    manifest_path,
    of_pages,
    open_store,
    packs,
    restore_files,
    store,
)
from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.store import GarbageResult, Repository, collect_garbage, verify
from crckpt.store.owner import identify_owner


def test_any_checkpoint_can_be_removed_without_affecting_others(tmp_path: Path) -> None:
    for doomed in range(3):
        base = tmp_path / str(doomed)
        base.mkdir()
        repository = open_store(base)
        kept = [store(repository, base, of_pages(*range(1, 200), number)) for number in (300, 301, 302)]
        before = [restore_files(repository, checkpoint, base) for checkpoint in kept]
        repository.remove([kept.pop(doomed).id])
        before.pop(doomed)
        collect_garbage(repository)
        assert [restore_files(repository, checkpoint, base) for checkpoint in kept] == before
        assert repository.checkpoints() == tuple(kept)
        assert verify(repository).damages == ()


def test_gc_removes_unreferenced_packs(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(*range(1, 100)), described("one"))
    second = store(repository, tmp_path, of_pages(*range(100, 200)), described("two"))
    assert collect_garbage(repository) == GarbageResult((), (), 0)
    repository.remove([first.id])
    size = packs(repository)[0].stat().st_size
    result = collect_garbage(repository, dry_run=True)
    assert len(packs(repository)) == 2
    completed = collect_garbage(repository)
    assert completed == result
    assert completed.packs == (first.packs[0].digest,)
    assert completed.leftovers == (f"cache/fingerprints/{first.packs[0].digest}",)
    assert completed.bytes >= size
    assert [path.stem for path in packs(repository)] == [second.packs[0].digest]


def test_gc_removes_nothing_while_a_manifest_is_unreadable(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, of_pages(1), described("one"))
    second = store(repository, tmp_path, of_pages(2), described("two"))
    repository.remove([first.id])
    flip(repository.root / "checkpoints" / second.id / "manifest.json", 30)
    with pytest.raises(IntegrityError, match="nothing was removed") as refusal:
        collect_garbage(repository)
    assert refusal.value.hint == (
        "repair it from a copy of the store: crckpt verify --repair --from STORE; "
        f"or remove it: crckpt rm {second.short_id}"
    )
    assert len(packs(repository)) == 2
    repository.remove([repository.resolve(second.short_id)])
    assert len(collect_garbage(repository).packs) == 2


def test_gc_suggests_an_upgrade_for_a_newer_manifest(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, of_pages(1))
    manifest = repository.root / "checkpoints" / checkpoint.id / "manifest.json"
    newer = json.dumps({**json.loads(manifest.read_bytes()), "schema": 2}).encode()
    manifest.write_bytes(newer)
    manifest.parent.rename(manifest.parent.with_name(hashlib.sha256(newer).hexdigest()))
    with pytest.raises(IntegrityError, match="schema 2") as refusal:
        collect_garbage(repository)
    assert refusal.value.hint == "use a crckpt that knows schema 2"


def _transaction(repository: Repository, name: str, owner: bytes | None) -> Path:
    path = repository.root / "tmp" / name
    path.mkdir()
    (path / "half.img").write_bytes(b"x" * 10_000)
    if owner is not None:
        (path / "owner.json").write_bytes(owner)
    return path


def test_gc_removes_directories_of_dead_processes(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    own_identity = identify_owner(0.0)
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    _transaction(repository, "1-gone", replace(own_identity, pid=ended.pid).encode())
    _transaction(repository, "2-pid-used-again", replace(own_identity, start=own_identity.start - 1).encode())
    _transaction(repository, "3-other-boot", replace(own_identity, boot_id="before").encode())
    _transaction(repository, "4-nobody", None)
    _transaction(repository, "5-cut-short", b'{"pid": 1')
    alive = _transaction(repository, "6-alive", own_identity.encode())
    unseen = _transaction(repository, "7-unseen", replace(own_identity, pid=ended.pid, pid_namespace=1).encode())
    result = collect_garbage(repository)
    assert [name.split("/")[1][0] for name in result.leftovers] == ["1", "2", "3", "4", "5"]
    assert result.bytes >= 50_000
    assert sorted((repository.root / "tmp").iterdir()) == [alive, unseen]


def test_gc_leaves_foreign_files_alone(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, of_pages(1))
    strange = [
        repository.root / "packs" / "ab" / "backup.pack",
        repository.root / "checkpoints" / "notes",
        repository.root / "README",
    ]
    for path in strange:
        path.parent.mkdir(exist_ok=True)
        path.write_text("not ours")
    collect_garbage(repository)
    assert all(path.exists() for path in strange)
    assert len(repository.checkpoints()) == 1


def test_gc_removes_incomplete_tags(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, of_pages(1))
    repository.tag(checkpoint.id, "good")
    half = repository.root / "refs/tags/job/.good.123"
    half.write_text("ab")
    assert [tag.name for tag in repository.tags()] == ["good"]
    assert collect_garbage(repository).leftovers == ("refs/tags/job/.good.123",)
    assert not half.exists()
    assert repository.resolve("job:good") == checkpoint.id


def test_checkpoint_without_its_manifest_is_damaged(tmp_path: Path) -> None:
    """A manifest is removed with its directory, so it was lost. The packs stay until the checkpoint is given up."""
    repository = open_store(tmp_path)
    lost = store(repository, tmp_path, of_pages(*range(1, 100)))
    other = store(repository, tmp_path, of_pages(*range(200, 250)), described("other"))
    manifest_path(repository, lost.id).unlink()
    assert repository.checkpoints() == (other,)
    assert [(bad.id, bad.job) for bad in repository.unreadable()] == [(lost.id, lost.job)]
    assert [(damage.kind, damage.name) for damage in verify(repository).damages] == [("manifest", lost.id)]
    for ref in (lost.id, lost.short_id):
        with pytest.raises(IntegrityError, match=f"the manifest of checkpoint {lost.short_id} is missing"):
            repository.get(repository.resolve(ref))
    before = packs(repository)
    with pytest.raises(IntegrityError, match="is missing, and crckpt cannot tell which packs it needs"):
        collect_garbage(repository)
    assert packs(repository) == before
    repository.remove([lost.id])
    assert collect_garbage(repository).packs
    assert verify(repository).damages == ()


def test_gc_ends_processes_left_by_a_killed_restore(tmp_path: Path) -> None:
    """The crckpt and CRIU of the restore were killed: its processes wait forever with CRIU's log open."""
    repository = open_store(tmp_path)
    own_identity = identify_owner(0.0)
    dead = replace(own_identity, start=own_identity.start - 1).encode()
    left, going_on = (_transaction(repository, name, dead) for name in ("1-left", "2-criu-lives"))
    (left / "builder.json").write_bytes(dead)
    (going_on / "builder.json").write_bytes(own_identity.encode())
    code = "import sys, time; file = open(sys.argv[1], 'w'); print(flush=True); time.sleep(1000)"
    programs: list[subprocess.Popen[bytes]] = []
    try:
        for path in (left, going_on):
            words = (sys.executable, "-c", code, str(path / "restore.log"))
            programs.append(subprocess.Popen(words, stdout=subprocess.PIPE, cwd=path))
            assert programs[-1].stdout is not None
            assert programs[-1].stdout.readline() == b"\n"
        collect_garbage(repository, dry_run=True)
        assert [program.poll() for program in programs] == [None, None]
        result = collect_garbage(repository)
        assert programs[0].wait() == -9
        assert programs[1].poll() is None
        assert result.leftovers == ("tmp/1-left",)
    finally:
        for program in programs:
            program.kill()
            program.communicate()
