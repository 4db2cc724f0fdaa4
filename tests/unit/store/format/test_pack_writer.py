"""A pack that is being written: a new file, which is complete when it is finished."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_process import descriptors

from crckpt.store.format.pack import MAGIC, Frame, PackWriter


def test_pack_does_not_overwrite_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "pack").write_text("something else")
    before = descriptors()
    with pytest.raises(FileExistsError):
        PackWriter(tmp_path / "pack")
    assert (tmp_path / "pack").read_text() == "something else"
    assert descriptors() == before


def test_pages_of_a_pack_are_counted_and_its_trailer_is_written(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "pack")
    writer.add(Frame(b"stored", bytes(32), 3 * 4096))
    writer.add(Frame(b"more", bytes(32), 2 * 4096))
    assert writer.pages == 5
    done = writer.finish()
    writer.close()
    writer.close()
    content = (tmp_path / "pack").read_bytes()
    assert content.startswith(MAGIC + b"storedmore")
    assert content.endswith(MAGIC)
    assert (done.frames, done.pages, done.size) == (2, 5, len(content))
