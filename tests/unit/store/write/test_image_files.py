"""Image files, which may come from elsewhere, are checked before they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crckpt.errors import IntegrityError
from crckpt.store.write.imageset import opened_image, read_image_file


def test_image_file_is_read_completely(tmp_path: Path) -> None:
    (tmp_path / "core-1.img").write_bytes(b"content")
    assert read_image_file(tmp_path / "core-1.img") == b"content"
    with opened_image(tmp_path / "core-1.img") as descriptor:
        assert os.read(descriptor, 100) == b"content"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize(("name", "fits"), [("files.img", False), ("pagemap-1.img", True), ("ghost-file-1.img", True)])
def test_only_page_maps_and_deleted_files_may_be_large(tmp_path: Path, name: str, fits: bool) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, (256 << 20) + 1)
    if fits:
        with opened_image(tmp_path / name) as descriptor:
            assert os.fstat(descriptor).st_size == (256 << 20) + 1
        os.truncate(tmp_path / name, (1 << 30) + 1)
    with pytest.raises(IntegrityError, match=name):
        read_image_file(tmp_path / name)


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_special_file_among_the_images_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "core-1.img"
    path.symlink_to("/etc/passwd") if kind == "link" else os.mkfifo(path)
    with pytest.raises(IntegrityError, match=r"core-1\.img"):
        read_image_file(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_owner_of_the_directory_may_own_the_images(tmp_path: Path) -> None:
    """The images of an unpacked archive belong to the user who unpacked it."""
    directory = tmp_path / "images"
    directory.mkdir()
    (directory / "core-1.img").write_bytes(b"content")
    os.chown(directory / "core-1.img", 4242, 4242)
    with pytest.raises(IntegrityError, match=r"core-1\.img"):
        read_image_file(directory / "core-1.img")
    os.chown(directory, 4242, 4242)
    assert read_image_file(directory / "core-1.img") == b"content"
