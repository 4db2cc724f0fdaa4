"""A second store repairs the damage of the first, and nothing gets worse on the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import examples, some
from failing_disk import failing
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sets import (
    ImageSet,
    area,
    described,
    files_of,
    flip,
    manifest_path,
    open_store,
    pack_path,
    packs,
    restore_files,
    store,
)

from crckpt.errors import IntegrityError, NoSuchCheckpoint, StoreUnusable, UsageError
from crckpt.model import CheckpointId, JobName
from crckpt.store import Repository, Unrepaired, collect_garbage, repair, verify

FRAMES = ImageSet({"pagemap-1.img": [area(0, *range(1, 300))]})
MORE = ImageSet({"pagemap-1.img": [area(0, *range(1, 250), *range(1000, 1100))]})


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Repository, Repository]:
    """A store with two checkpoints of one job and one of another, and a copy of it."""
    repository = open_store(tmp_path)
    store(repository, tmp_path, FRAMES)
    store(repository, tmp_path, MORE)
    store(repository, tmp_path, ImageSet(files={"core-1.img": b"x" * 9000}), described("other"))
    shutil.copytree(repository.root, tmp_path / "copy")
    return repository, Repository.open(tmp_path / "copy")


def _tree(root: Path) -> dict[str, bytes]:
    """Everything in a store but what is in flight and who is at work."""
    found = (path for path in sorted(root.rglob("*")) if path.is_file())
    names = {str(path.relative_to(root)): path.read_bytes() for path in found}
    return {name: content for name, content in names.items() if not name.startswith(("locks/", "tmp/", "cache/"))}


def _spoil_everything(root: Path) -> None:
    """Each pack in another way, and the manifest of the other job's checkpoint, the only one that names its pack."""
    manifest = manifest_path(Repository.open(root), Repository.open(root).checkpoints(JobName("other"))[0].id)
    first, second, third = sorted((root / "packs").glob("*/*.pack"))
    flip(first, 100)
    second.unlink()
    second.parent.rmdir()
    third.write_bytes(third.read_bytes()[:-3])
    flip(manifest, 40)


def test_all_damage_is_repaired_from_another_store(stores: tuple[Repository, Repository]) -> None:
    repository, copy = stores
    intact_files = _tree(repository.root)
    ids = set(repository.ids())
    _spoil_everything(repository.root)
    damages = len(verify(repository).damages)
    result = repair(repository, source=copy)
    assert _tree(repository.root) == _tree(copy.root) == intact_files
    assert result.now.damages == ()
    assert result.unrepaired == ()
    assert set(result.restorable) == ids
    # The pack that only the spoilt manifest names was not known to be damaged before.
    assert len(result.repaired) == damages + 1 == 4
    assert {damage.kind for damage in result.repaired} == {"manifest", "pack"}
    assert list((repository.root / "tmp").iterdir()) == []
    assert {path.stat().st_mode & 0o777 for path in (repository.root / "packs").iterdir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in packs(repository)} == {0o600}


def test_restorable_checkpoints_are_listed_without_another_store(stores: tuple[Repository, Repository]) -> None:
    repository, _ = stores
    _, _, other = repository.checkpoints()
    flip(pack_path(repository, other.packs[0].digest), 100)
    before = _tree(repository.root)
    result = repair(repository)
    assert result.now == verify(repository)
    assert (result.repaired, result.unrepaired) == ((), ())
    assert set(result.restorable) == set(repository.ids()) - {other.id}
    assert _tree(repository.root) == before


def test_only_the_requested_checkpoint_is_repaired(stores: tuple[Repository, Repository]) -> None:
    repository, copy = stores
    first, _, other = repository.checkpoints()
    for checkpoint in (first, other):
        flip(pack_path(repository, checkpoint.packs[0].digest), 100)
    result = repair(repository, [other.id], source=copy)
    assert [damage.name for damage in result.repaired] == [other.packs[0].digest]
    assert result.restorable == (other.id,)
    assert first.id in verify(repository).lost
    with pytest.raises(NoSuchCheckpoint):
        repair(repository, [CheckpointId("0" * 64)], source=copy)


def test_each_frame_comes_from_the_store_where_it_is_intact(
    stores: tuple[Repository, Repository], tmp_path: Path
) -> None:
    repository, copy = stores
    first = repository.checkpoints()[0]
    here, there = (pack_path(one, first.packs[0].digest) for one in stores)
    intact = here.read_bytes()
    flip(here, 100)
    there.write_bytes(intact[:-1])
    flip(there, len(intact) // 2)
    spoilt = there.read_bytes()
    # Both tables are damaged, so crckpt does not know where the frames are.
    flip(here, len(intact) - 60)
    assert len(repair(repository, source=copy).unrepaired) == 1
    flip(here, len(intact) - 60)
    assert repair(repository, source=copy).now.damages == ()
    assert here.read_bytes() == intact
    assert there.read_bytes() == spoilt, "the other store is left as it is"
    assert restore_files(repository, first, tmp_path) == files_of(tmp_path / "images-0")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: flip(path, 100), "frame 0: its SHA-256 does not match"),
        (lambda path: path.unlink(), "has no pack"),
        (lambda path: path.write_bytes(b""), "frame 0: the file is cut short"),
    ],
)
def test_damage_that_is_in_both_stores_is_not_repaired(
    stores: tuple[Repository, Repository], spoil: Callable[[Path], None], why: str
) -> None:
    repository, copy = stores
    first = repository.checkpoints()[0]
    digest = first.packs[0].digest
    flip(pack_path(repository, digest), 100)
    spoil(pack_path(copy, digest))
    before = _tree(repository.root)
    result = repair(repository, source=copy)
    assert _tree(repository.root) == before
    assert result.repaired == ()
    assert [still.name for still in result.unrepaired] == [digest]
    assert why in result.unrepaired[0].why
    assert str(copy.root) in result.unrepaired[0].why
    assert result.now.lost == verify(repository).lost


def test_checkpoint_whose_manifest_both_stores_lack_is_lost(stores: tuple[Repository, Repository]) -> None:
    repository, copy = stores
    first, second, _ = repository.checkpoints()
    for checkpoint in (first, second):
        flip(manifest_path(repository, checkpoint.id), 9)
    copy.remove([first.id])
    flip(manifest_path(copy, second.id), 9)
    result = repair(repository, source=copy)
    assert set(result.unrepaired) == {
        Unrepaired(first.id, f"{copy.root} has no checkpoint {first.short_id}"),
        Unrepaired(
            second.id,
            f"in {copy.root}: the manifest of checkpoint {second.short_id} is damaged: its SHA-256 is not its id",
        ),
    }
    assert result.now.lost == tuple(sorted((first.id, second.id)))


def test_unsuitable_other_store_is_refused(stores: tuple[Repository, Repository], tmp_path: Path) -> None:
    repository, _ = stores
    (tmp_path / "link").symlink_to(repository.root)
    with pytest.raises(UsageError, match="the damaged store itself"):
        repair(repository, source=Repository.open(tmp_path / "link"))
    _spoil_everything(repository.root)
    result = repair(repository, source=Repository.open(tmp_path / "empty", create=True))
    assert result.repaired == ()
    assert len(result.unrepaired) == 4 - 1, "the pack that only the spoilt manifest names is not known"


@settings(max_examples=examples(40))
@given(
    here=st.lists(st.floats(0, 1, exclude_max=True), max_size=3),
    there=st.lists(st.floats(0, 1, exclude_max=True), max_size=3),
)
def test_repair_from_a_damaged_store_adds_no_damage(
    stores: tuple[Repository, Repository], here: list[float], there: list[float]
) -> None:
    repository, copy = stores
    intact_files = _tree(repository.root)
    pack = packs(repository)[0]
    try:
        for root, shares in ((repository.root, here), (copy.root, there)):
            for share in shares:
                flip(root / pack.relative_to(repository.root), int(share * pack.stat().st_size))
        before, theirs = verify(repository), verify(copy)
        result = repair(repository, source=copy)
        assert set(result.now.lost) <= set(before.lost)
        assert result.now == verify(repository)
        if not theirs.damages:
            assert result.now.damages == ()
        assert {name for name, content in _tree(repository.root).items() if content != intact_files[name]} <= {
            str(pack.relative_to(repository.root))
        }
    finally:
        for root in (repository.root, copy.root):
            (root / pack.relative_to(repository.root)).write_bytes(intact_files[str(pack.relative_to(repository.root))])


KILLED_REPAIR = """
import os, signal, sys
from pathlib import Path
from crckpt.store import Repository, repair
import crckpt.store.upkeep.audit, crckpt.store.upkeep.repair
repository, source = (Repository.open(Path(path)) for path in sys.argv[1:3])
left = int(sys.argv[3])
def count(event, arguments):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
repair(repository, source=source)
"""


def _cut_short(repository: Repository, source: Repository, after: int) -> bool:
    """Kill a repair after so many steps; return whether it was killed."""
    command = [sys.executable, "-c", KILLED_REPAIR, str(repository.root), str(source.root), str(after)]
    ended = subprocess.run(command, check=False, env=os.environ)
    assert ended.returncode in (0, -signal.SIGKILL)
    return ended.returncode != 0


def test_repair_killed_at_any_step_is_harmless(stores: tuple[Repository, Repository], tmp_path: Path) -> None:
    """Every file is as before or intact, and no other checkpoint is lost. Another repair and gc finish the work."""
    repository, copy = stores
    intact_files = _tree(copy.root)
    shutil.copytree(repository.root, tmp_path / "spoilt")
    _spoil_everything(tmp_path / "spoilt")
    spoilt = _tree(tmp_path / "spoilt")
    stages = set()
    for after in some(range(0, 10_000, 5)):
        shutil.rmtree(repository.root)
        shutil.copytree(tmp_path / "spoilt", repository.root)
        killed = _cut_short(repository, copy, after)
        now = _tree(repository.root)
        for name, content in intact_files.items():
            assert now.get(name) in (content, spoilt.get(name)), name
        assert now.keys() <= intact_files.keys()
        stages.add(sum(now.get(name) == content for name, content in intact_files.items()))
        if not killed:
            break
        if after % 60 == 0:
            assert repair(repository, source=copy).now.damages == ()
            collect_garbage(repository)
            assert _tree(repository.root) == intact_files
            assert list((repository.root / "tmp").iterdir()) == []
    assert now == intact_files
    # Four files are mended one after the other; a short run may step over one.
    assert len(stages) >= 3


def test_store_is_repaired_from_a_read_only_copy(stores: tuple[Repository, Repository], tmp_path: Path) -> None:
    """The copy is a backup on a medium where no lock file can be written."""
    repository, copy = stores
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "--bind", copy.root, copy.root], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", copy.root], check=True)
        _spoil_everything(repository.root)
        assert repair(repository, source=Repository.open(copy.root)).now.damages == ()
    finally:
        subprocess.run(["umount", copy.root], check=True)


def test_missing_manifest_is_copied_from_the_other_store(stores: tuple[Repository, Repository]) -> None:
    repository, copy = stores
    intact_files = _tree(repository.root)
    first = repository.ids()[0]
    manifest_path(repository, first).unlink()
    result = repair(repository, source=copy)
    assert (result.now.damages, [damage.name for damage in result.repaired]) == ((), [first])
    assert _tree(repository.root) == intact_files


def test_pack_with_an_unreadable_sector_is_repaired(stores: tuple[Repository, Repository]) -> None:
    """crckpt cannot know whether an unreadable pack equals an intact one."""
    repository, copy = stores
    (path, *_) = packs(repository)
    flip(path, 100)
    repository = failing(repository, path, path.stat().st_size)
    assert repair(repository, source=copy).now.damages == ()


def test_damaged_read_only_store_can_be_read(stores: tuple[Repository, Repository], tmp_path: Path) -> None:
    """The kernel makes a file system read-only after disk errors. Nothing is removed from the store."""
    _, copy = stores
    second = copy.checkpoints()[1]
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "--bind", copy.root, copy.root], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", copy.root], check=True)
        found = Repository.open(copy.root)
        assert verify(found).damages == ()
        assert restore_files(found, second, tmp_path) == files_of(tmp_path / "images-1")
        with pytest.raises(StoreUnusable, match="it is on a read-only mount"):
            collect_garbage(found)
    finally:
        subprocess.run(["umount", copy.root], check=True)


def test_restore_works_after_a_repair(stores: tuple[Repository, Repository], tmp_path: Path) -> None:
    repository, copy = stores
    second = repository.checkpoints()[1]
    _spoil_everything(repository.root)
    with pytest.raises(IntegrityError):
        restore_files(Repository.open(repository.root), second, tmp_path)
    repair(repository, source=copy)
    assert restore_files(repository, second, tmp_path) == files_of(tmp_path / "images-1")
