"""A pack is read as it was written, and any other is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import zstandard

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.format.pack import FOOTER, FRAME_PAGES, FinishedPack, Frame, Pack, PackWriter, open_pack

WHOLE, HALF = bytes(range(256)) * (FRAME_PAGES * PAGE_SIZE // 256), b"x" * (FRAME_PAGES // 2 * PAGE_SIZE)


def frame(content: bytes) -> Frame:
    stored = zstandard.compress(content)
    return Frame(stored, hashlib.sha256(stored).digest(), len(content))


def written(path: Path, *frames: Frame) -> FinishedPack:
    writer = PackWriter(path)
    try:
        for each in frames:
            writer.add(each)
        return writer.finish()
    finally:
        writer.close()


@pytest.fixture
def two_frame_pack(tmp_path: Path) -> FinishedPack:
    """A pack of two frames; the last one is shorter."""
    return written(tmp_path / "pack", frame(WHOLE), frame(HALF))


def read(finished: FinishedPack) -> Pack:
    return open_pack(Backend(finished.path.parent), finished.digest, finished.path.name)


def test_pack_round_trips(two_frame_pack: FinishedPack) -> None:
    pack = read(two_frame_pack)
    assert (
        (pack.pages, pack.size)
        == (two_frame_pack.pages, two_frame_pack.size)
        == (96, two_frame_pack.path.stat().st_size)
    )
    assert [pack.read_frame(number) for number in range(2)] == [WHOLE, HALF]
    memory = [memoryview(bytearray(len(WHOLE))) for _ in range(2)]
    pack.unpack_frames([0, 1], memory)
    assert (bytes(memory[0]), bytes(memory[1][: len(HALF)])) == (WHOLE, HALF)


def test_digest_of_a_pack_is_that_of_its_table(two_frame_pack: FinishedPack) -> None:
    """The table contains the SHA-256 of each frame, so the digest identifies the content."""
    content = two_frame_pack.path.read_bytes()
    table_at = FOOTER.unpack(content[-FOOTER.size :])[0]
    assert hashlib.sha256(content[table_at : -FOOTER.size]).hexdigest() == two_frame_pack.digest
    with pytest.raises(IntegrityError):
        open_pack(Backend(two_frame_pack.path.parent), PackId("0" * 64), two_frame_pack.path.name)


def test_frame_with_changed_bytes_is_refused(two_frame_pack: FinishedPack) -> None:
    pack = read(two_frame_pack)
    with pytest.raises(IntegrityError, match="frame 1: its SHA-256 does not match"):
        pack.check(1, pack.read_stored(0))


def test_frame_with_a_false_size_is_refused(tmp_path: Path) -> None:
    """zstd would allocate as much memory as the frame declares."""
    lying = frame(WHOLE)
    pack = read(written(tmp_path / "pack", Frame(lying.stored, lying.sha256, len(HALF))))
    with pytest.raises(IntegrityError, match=f"frame 0: it has {len(WHOLE)} bytes, not {len(HALF)}"):
        pack.read_frame(0)


@pytest.mark.parametrize("left", [0, 5, FOOTER.size - 1, -1])
def test_truncated_pack_is_refused(two_frame_pack: FinishedPack, left: int) -> None:
    content = two_frame_pack.path.read_bytes()
    two_frame_pack.path.chmod(0o600)
    two_frame_pack.path.write_bytes(content[:left])
    with pytest.raises(IntegrityError):
        read(two_frame_pack)
