"""A pack is made again of damaged copies, as long as each frame is intact in one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import flip, pack_path

from crckpt.errors import IntegrityError
from crckpt.model import PackId
from crckpt.store import Checkpoint, Repository
from crckpt.store.backend.local import Backend
from crckpt.store.layout import pack_name
from crckpt.store.upkeep.repair import reassemble


@pytest.fixture
def digest(one_checkpoint: tuple[Repository, Checkpoint]) -> str:
    """A pack of two frames."""
    return one_checkpoint[1].packs[0].digest


@pytest.fixture
def intact_pack(one_checkpoint: tuple[Repository, Checkpoint], digest: str) -> bytes:
    return pack_path(one_checkpoint[0], digest).read_bytes()


@pytest.fixture
def copies(tmp_path: Path, digest: str, intact_pack: bytes) -> list[Path]:
    """Two copies of the pack."""
    paths = [tmp_path / name / pack_name(PackId(digest)) for name in ("one", "other")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(intact_pack)
    return paths


def made_of(copies: list[Path], digest: str, into: Path) -> bytes:
    reassemble(PackId(digest), [Backend(path.parents[2]) for path in copies], into)
    return into.read_bytes()


def test_each_frame_of_a_pack_is_taken_from_an_intact_copy(
    copies: list[Path], digest: str, intact_pack: bytes, tmp_path: Path
) -> None:
    first, second = copies
    flip(first, 100)
    flip(second, len(intact_pack) - 1000)
    assert made_of(copies, digest, tmp_path / "new") == intact_pack


def test_frames_are_taken_from_a_copy_of_a_pack_with_a_damaged_table(
    copies: list[Path], digest: str, intact_pack: bytes, tmp_path: Path
) -> None:
    """The table of another copy says where the frames are."""
    first, second = copies
    flip(first, len(intact_pack) - 20)
    flip(second, 100)
    assert made_of(copies, digest, tmp_path / "new") == intact_pack


def test_missing_or_truncated_copy_of_a_pack_is_skipped(
    copies: list[Path], digest: str, intact_pack: bytes, tmp_path: Path
) -> None:
    first, second = copies
    first.unlink()
    assert made_of(copies, digest, tmp_path / "new") == intact_pack
    first.write_bytes(intact_pack[:200])
    assert made_of([second, first], digest, tmp_path / "again") == intact_pack


@pytest.mark.parametrize("place", [100, -1])
def test_frame_damaged_in_every_copy_is_an_error(
    copies: list[Path], digest: str, intact_pack: bytes, tmp_path: Path, place: int
) -> None:
    for path in copies:
        flip(path, place % len(intact_pack))
    with pytest.raises(IntegrityError, match=digest[:12]):
        made_of(copies, digest, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_reassembled_pack_does_not_replace_an_existing_file(copies: list[Path], digest: str, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("something else")
    with pytest.raises(FileExistsError):
        made_of(copies, digest, tmp_path / "new")
    assert (tmp_path / "new").read_text() == "something else"
