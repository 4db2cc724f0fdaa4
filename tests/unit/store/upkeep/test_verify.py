"""verify names what will be refused, and reads each pack once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sets import ONE_PROCESS, flip, open_store, packs, store

from crckpt.errors import IntegrityError, NoSuchCheckpoint
from crckpt.model import CheckpointId
from crckpt.store import Repository, details_of, materialise, verify


@settings(max_examples=examples(100))
@given(data=st.data())
def test_verify_reports_the_checkpoints_that_restore_refuses(series: Repository, data: st.DataObject) -> None:
    """Exactly the checkpoints that verify reports as lost are refused, with exit code 13, whichever bit is flipped."""
    ids = series.ids()
    files = [*packs(series), *sorted(series.root.glob("checkpoints/*/manifest.json"))]
    path = data.draw(st.sampled_from(files))
    offset, bit = data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(0, 7))
    flip(path, offset, bit)
    try:
        found = verify(Repository.open(series.root))
        refused = {identity: error for identity in ids if (error := _refusal(series.root, identity)) is not None}
        (damage,) = found.damages
        assert set(damage.checkpoints) == set(refused) == set(found.lost)
        assert refused
        for identity, error in refused.items():
            assert error.exit_code == 13
            assert identity[:8] in error.message
            assert damage.name[:8] in error.message
    finally:
        flip(path, offset, bit)


def _refusal(root: Path, identity: CheckpointId) -> IntegrityError | None:
    repository = Repository.open(root)
    with tempfile.TemporaryDirectory() as directory:
        try:
            materialise(repository, repository.get(identity), Path(directory))
            # A restore reads these, too. They may be in a pack of another job of which it needs nothing else.
            details_of(repository, repository.get(identity))
        except IntegrityError as error:
            return error
    return None


def test_shared_pack_is_read_once(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    kept = [store(repository, tmp_path, ONE_PROCESS) for _ in range(3)]
    progress: list[tuple[int, int]] = []
    found = verify(repository, progress=lambda done, total: progress.append((done, total)))
    assert (len(found.checkpoints), found.packs, found.damages) == (len(kept), 1, ())
    assert progress[-1] == (packs(repository)[0].stat().st_size,) * 2


def test_damage_of_unreferenced_packs_is_ignored(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ONE_PROCESS)
    repository.remove([checkpoint.id])
    flip(packs(repository)[0], 100)
    assert verify(repository).damages == ()


def test_verify_of_an_unknown_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchCheckpoint):
        verify(open_store(tmp_path), [CheckpointId("0" * 64)])
