"""Plain images of CRIU become a checkpoint with what they show of their host and their dump."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import files_of, open_store, restore_files, write_set
from recorded_images import PAGES, RECORDED, image_set

from crckpt.errors import IntegrityError, UsageError
from crckpt.ops.context import Context
from crckpt.ops.import_images import import_images


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The images of a real tree."""
    return write_set(tmp_path / "images", image_set(PAGES))


def test_images_of_a_real_tree_are_imported(images: Path, tmp_path: Path) -> None:
    before = files_of(images)
    checkpoint = import_images(Context(tmp_path / "store"), images, "job", "a note")
    assert files_of(images) == before
    assert (checkpoint.job, checkpoint.note, checkpoint.stopped) == ("job", "a note", True)
    assert [task.pid for task in checkpoint.tree] == [process.pid for process in RECORDED.processes]
    assert checkpoint.run_id == RECORDED.inventory.run_id
    assert checkpoint.host.cpu_features == ("avx512f",), "what its registers show"
    assert (checkpoint.options.tcp, checkpoint.options.shell_job, checkpoint.options.link_remap) == (
        "keep",
        False,
        True,
    )
    assert checkpoint.statistics.frozen_ms > 0
    repository = open_store(tmp_path)
    assert restore_files(repository, checkpoint, tmp_path).keys() >= before.keys() - {"stats-dump"}


def test_directory_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for directory, why in (("empty", r"has no CRIU images \(no inventory.img\)"), ("none", "does not exist")):
        with pytest.raises(UsageError, match=why):
            import_images(Context(tmp_path / "store"), tmp_path / directory, "job")
    assert not (tmp_path / "store").exists()


def test_invalid_job_name_and_damaged_images_are_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid job name"):
        import_images(Context(tmp_path / "store"), images, "../job")
    (images / "pstree.img").write_bytes(b"damaged")
    with pytest.raises(IntegrityError, match=r"pstree\.img"):
        import_images(Context(tmp_path / "store"), images, "job")
    assert not (tmp_path / "store").exists()
