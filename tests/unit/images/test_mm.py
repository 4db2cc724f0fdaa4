"""mm-PID.img: maps of a process."""

from __future__ import annotations

import pytest
from image_trees import WHERE, one

from crckpt.errors import IntegrityError
from crckpt.images import magics, mm, regfile, wire
from crckpt.images.mm import read_mm
from crckpt.images.tree import ImageTree


def test_mappings_are_read(tree: ImageTree) -> None:
    memory = tree.root.memory
    assert memory is not None
    kinds = {vma.kind for vma in memory.vmas}
    assert kinds >= {"private file", "shared file", "anonymous", "heap", "stack", "vdso", "memfd"}
    assert "unknown" not in kinds
    (stack,) = (vma for vma in memory.vmas if vma.kind == "stack")
    assert stack.start <= memory.start_stack < memory.arg_start < memory.arg_end <= memory.env_start < stack.end
    assert stack.file_id is None
    assert memory.size == sum(vma.end - vma.start for vma in memory.vmas)


def test_mapped_files_are_read(tree: ImageTree) -> None:
    titles = [file.title for file in tree.root.mapped]
    assert len(titles) == len(set(titles))
    assert {f"{WHERE}/shared-map", f"{WHERE}/private-map", "memfd:/dev/zero"} <= set(titles)
    (shared,) = (file for file in tree.root.mapped if file.title == f"{WHERE}/shared-map")
    assert tree.root.memory is not None
    (vma,) = (vma for vma in tree.root.memory.vmas if vma.file_id == shared.id)
    assert (vma.kind, vma.size, vma.prot, vma.pgoff) == ("shared file", 12288, mm.PROT_READ | mm.PROT_WRITE, 0)
    assert isinstance(shared, regfile.RegularFile)
    assert shared.size == 10000


def test_mapping_with_negative_size_is_refused() -> None:
    vma = wire.encode((number, wire.VARINT, 8192 if number == 1 else 4096) for number in range(1, 8))
    places = [(number, wire.VARINT, 1) for number in range(1, 13)]
    with pytest.raises(IntegrityError, match=r"mm-1\.img: a mapping ends at 0x1000"):
        read_mm(one(magics.MM, *places, (14, wire.BYTES, vma)), "mm-1.img")
