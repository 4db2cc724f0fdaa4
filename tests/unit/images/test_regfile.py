"""Regular files, deleted ones, and those with another name."""

from __future__ import annotations

import os
import stat

import pytest
from image_trees import WHERE, by_title, one

from crckpt.errors import IntegrityError
from crckpt.images import magics, regfile, wire
from crckpt.images.framing import Image, write_image
from crckpt.images.regfile import GHOST, LINKED, PROCESS, Remap, read_ghost, read_remaps
from crckpt.images.tree import ImageTree


def opened(tree: ImageTree, name: str, *, deleted: bool = False) -> regfile.RegularFile:
    """Return an open file in the program's directory."""
    file = by_title(tree, f"{WHERE}/{name}" + " (deleted)" * deleted)
    assert isinstance(file, regfile.RegularFile)
    return file


def test_open_files_are_read_from_the_image(tree: ImageTree) -> None:
    plain = opened(tree, "plain")
    assert (plain.size, plain.pos, plain.flags & os.O_ACCMODE) == (100, 42, os.O_RDONLY)
    data = opened(tree, "data")
    assert (data.size, data.mode, data.flags & os.O_ACCMODE) == (0, 0o100640, os.O_RDWR)
    directory = by_title(tree, WHERE)
    assert isinstance(directory, regfile.RegularFile)
    assert stat.S_ISDIR(directory.mode or 0)
    assert os.fsencode(opened(tree, "na\u00efve-\udcff").path).endswith(b"-\xff")


def test_append_only_files_have_no_recorded_size(tree: ImageTree) -> None:
    log = opened(tree, "log")
    assert (log.is_append_only, log.size, log.pos) == (True, None, 11)
    files = [file for file in tree.regular_files if stat.S_ISREG(file.mode or stat.S_IFREG)]
    assert [file for file in files if (file.size is None) != file.is_append_only] == []


def test_deleted_files_are_read_from_the_image(tree: ImageTree) -> None:
    sizes = {name: opened(tree, name, deleted=True).remap for name in ("small", "gone.log", "large")}
    assert {name: remap and (remap.kind, remap.size) for name, remap in sizes.items()} == {
        "small": (regfile.GHOST, 1000),
        "gone.log": (regfile.GHOST, 77),
        "large": (regfile.GHOST, 8 << 20),
    }
    assert opened(tree, "large", deleted=True).is_ghost


def test_holes_of_a_ghost_file_are_not_stored(tree: ImageTree, images: dict[str, bytes]) -> None:
    remap = opened(tree, "large", deleted=True).remap
    assert remap is not None
    ghost = regfile.read_ghost(images[regfile.ghost_image(remap.target)])
    assert (ghost.uid, ghost.gid, ghost.mode, ghost.size, ghost.stored) == (0, 0, 0o100600, 8 << 20, 4096)


def test_deleted_file_with_another_name_is_linked(tree: ImageTree) -> None:
    linked = opened(tree, "linked", deleted=True)
    assert linked.remap is not None
    assert linked.remap == regfile.Remap(
        regfile.LINKED, linked.remap.target, f"{WHERE}/link_remap.{linked.remap.target}"
    )
    assert not linked.is_ghost
    assert not any("link_remap" in file.path for file in tree.regular_files)


def test_open_and_mapped_elf_files_have_build_ids(tree: ImageTree) -> None:
    assert isinstance(tree.root.exe, regfile.RegularFile)
    assert len(bytes.fromhex(tree.root.exe.build_id)) == 20
    (libc,) = (file for file in tree.root.mapped if file.title.endswith("/libc.so.6"))
    assert isinstance(libc, regfile.RegularFile)
    assert libc.build_id
    assert opened(tree, "plain").build_id == ""


@pytest.mark.parametrize(
    ("target", "kind", "remap"),
    [
        (0x80000005, None, Remap(GHOST, 5)),
        (5, None, Remap(LINKED, 5)),
        (5, 0, Remap(LINKED, 5)),
        (5, 1, Remap(GHOST, 5)),
        (5, 2, Remap(PROCESS, 5)),
        (5, 3, Remap("unknown", 5)),
    ],
)
def test_remaps_of_old_and_new_criu_are_read(target: int, kind: int | None, remap: Remap) -> None:
    types = [] if kind is None else [(3, wire.VARINT, kind)]
    data = one(magics.REMAP_FPATH, (1, wire.VARINT, 9), (2, wire.VARINT, target), *types)
    assert read_remaps(data) == {9: remap}


def test_ghost_image_without_records_is_refused() -> None:
    with pytest.raises(IntegrityError, match=r"ghost-file-1\.img: field 1 is missing"):
        read_ghost(write_image(Image(magics.GHOST_FILE, ())), "ghost-file-1.img")
