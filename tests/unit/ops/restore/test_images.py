"""The images that CRIU gets in a restore, as files and as streams: the same, and without what would harm the tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import ImageSet, files_of, store
from recorded_images import IMAGES, PAGES, RECORDED, image_set

from crckpt.images import wire
from crckpt.images.core import read_core
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.ops.context import ignore_progress
from crckpt.ops.inspect.images import read_image_tree
from crckpt.ops.restore.images import ImageEdits, ImageStreams, images_with_parent_signal, write_images
from crckpt.store import Checkpoint, Repository, open_reader

CORE = f"core-{RECORDED.root.pid}.img"
THREAD_CORE, PARENT_DEATH_SIGNAL, SIGTERM = 5, 8, 15  # images/core.proto


def with_parent_signal(content: bytes) -> bytes:
    """A core image whose thread has asked for a signal when its parent ends (PR_SET_PDEATHSIG)."""
    image = read_image(content)
    signal = wire.encode([(PARENT_DEATH_SIGNAL, wire.VARINT, SIGTERM)])
    (record,) = image.records
    fields = (
        (number, kind, value + signal if number == THREAD_CORE and isinstance(value, bytes) else value)
        for number, kind, value in wire.fields(record.payload)
    )
    return write_image(Image(image.magic, (Record(wire.encode(fields), record.extra),)))


@pytest.fixture
def checkpoint(repository: Repository, tmp_path: Path) -> Checkpoint:
    """The recorded tree, whose root has asked for such a signal."""
    images = image_set(PAGES)
    return store(repository, tmp_path, ImageSet(images.maps, {**images.files, CORE: with_parent_signal(IMAGES[CORE])}))


def streamed(repository: Repository, checkpoint: Checkpoint, without_signal: frozenset[str]) -> dict[str, bytes]:
    """All images, read as CRIU reads them."""
    tree = read_image_tree(repository, checkpoint)
    with open_reader(repository, checkpoint) as reading:
        streams = ImageStreams(reading, tree, ignore_progress, ImageEdits(without_signal))
        streams.begin()
        assert streams("none.img") is None
        names = [file.name for file in reading.files if file.name.endswith(".img")]
        return {name: b"".join(map(bytes, streams(name) or ())) for name in names}


def test_images_with_a_parent_death_signal_are_found(repository: Repository, checkpoint: Checkpoint) -> None:
    assert images_with_parent_signal(RECORDED) == frozenset()
    assert images_with_parent_signal(read_image_tree(repository, checkpoint)) == {CORE}


def test_images_written_to_files_equal_those_that_are_streamed(
    repository: Repository, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    files = files_of(write_images(repository, checkpoint, tmp_path, ignore_progress, ImageEdits(frozenset({CORE}))))
    streams = streamed(repository, checkpoint, frozenset({CORE}))
    small = {name for name in files if name.endswith(".img") and not name.startswith("pages-")}
    # The pages that crckpt fills in itself are left out of the streams.
    assert small <= set(streams)
    assert {name: streams[name] for name in small} == {name: files[name] for name in small}
    assert read_core(files[CORE]).parent_death_signal == 0
    assert files[CORE] == IMAGES[CORE]


def test_image_of_a_root_restored_as_sibling_keeps_its_parent_death_signal(
    repository: Repository, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    files = files_of(write_images(repository, checkpoint, tmp_path, ignore_progress, ImageEdits()))
    assert read_core(files[CORE]).parent_death_signal == SIGTERM
    assert streamed(repository, checkpoint, frozenset())[CORE] == files[CORE]


def test_images_written_for_a_restore_are_private(
    repository: Repository, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    directory = write_images(repository, checkpoint, tmp_path, ignore_progress, ImageEdits())
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}


def test_progress_never_decreases_or_exceeds_the_total(repository: Repository, checkpoint: Checkpoint) -> None:
    seen: list[tuple[int, int]] = []
    tree = read_image_tree(repository, checkpoint)
    with open_reader(repository, checkpoint) as reading:
        streams = ImageStreams(reading, tree, lambda done, total: seen.append((done, total)), ImageEdits())
        streams.begin()
        # CRIU may read an image twice.
        for name in [file.name for file in reading.files] * 2:
            for _ in streams(name) or ():
                pass
    assert seen[0][0] == 0
    assert sorted(seen) == seen
    assert seen[-1][0] <= seen[-1][1]
    assert {total for _, total in seen} == {seen[0][1]}
