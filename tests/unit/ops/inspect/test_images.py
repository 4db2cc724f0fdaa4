"""Images of a checkpoint: the tree in them, what pipes hold, and files that CRIU can restore."""

from __future__ import annotations

from pathlib import Path

from image_sets import files_of, write_set
from recorded_images import PAGES, RECORDED, image_set

from crckpt.images.other_files import Pipe
from crckpt.images.repairs import repair_image
from crckpt.ops.context import ignore_progress
from crckpt.ops.inspect.images import read_image_tree, read_pipes, unpack_images
from crckpt.store import Checkpoint, Repository


def test_tree_is_read_from_a_checkpoint_without_its_pages(
    repository: Repository, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    assert read_image_tree(repository, recordings[0]) == RECORDED


def test_contents_of_pipes_are_read_from_a_checkpoint(
    repository: Repository, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    (inode,) = {file.pipe_id for file in RECORDED.files if isinstance(file, Pipe)}
    (held,) = read_pipes(repository, recordings[0], frozenset({inode}))
    assert (held.pipe_id, held.content) == (inode, b"in flight")
    assert read_pipes(repository, recordings[0], frozenset({inode + 1})) == ()
    assert read_pipes(repository, recordings[0], frozenset()) == ()


def test_images_of_a_checkpoint_are_unpacked_with_repairs(
    repository: Repository, recordings: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    unpack_images(repository, recordings[0], tmp_path / "out", ignore_progress)
    before, after = files_of(write_set(tmp_path / "images", image_set(PAGES))), files_of(tmp_path / "out")
    assert after.keys() == before.keys()
    repairs = {name: repair_image(name) for name in before}
    assert {name for name, repair in repairs.items() if repair} == {
        name for name in before if name == "files.img" or name.startswith("core-")
    }
    assert after == {name: repair(before[name]) if (repair := repairs[name]) else before[name] for name in before}
