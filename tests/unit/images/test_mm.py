"""mm-PID.img: maps of a process."""

from __future__ import annotations

import pytest
from image_trees import WHERE, one

from crckpt.errors import IntegrityError
from crckpt.images import magics, mm, regfile, wire
from crckpt.images.mm import claim_nothing, read_mm
from crckpt.images.tree import ImageTree


def test_memory_mappings_are_read_from_the_image(tree: ImageTree) -> None:
    memory = tree.root.memory
    assert memory is not None
    kinds = {vma.kind for vma in memory.vmas}
    assert kinds >= {"private file", "shared file", "anonymous", "heap", "stack", "vdso", "memfd"}
    assert "unknown" not in kinds
    (stack,) = (vma for vma in memory.vmas if vma.kind == "stack")
    assert stack.start <= memory.start_stack < memory.arg_start < memory.arg_end <= memory.env_start < stack.end
    assert stack.file_id is None
    assert memory.size == sum(vma.end - vma.start for vma in memory.vmas)


def test_mapped_files_are_read_from_the_image(tree: ImageTree) -> None:
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


@pytest.mark.parametrize(
    ("size", "prot", "flags", "reserves"),
    [
        (1 << 40, 0, mm.MAP_PRIVATE, True),
        (1 << 40, mm.PROT_READ | mm.PROT_EXEC, mm.MAP_PRIVATE, True),
        (1 << 40, mm.PROT_WRITE, mm.MAP_PRIVATE, False),
        (1 << 40, 0, mm.MAP_SHARED, False),
        (1 << 40, 0, mm.MAP_PRIVATE | mm.MAP_NORESERVE, False),
        (1 << 40, 0, mm.MAP_PRIVATE | mm.MAP_HUGETLB, False),
        (1 << 20, 0, mm.MAP_PRIVATE, False),
    ],
)
def test_reserved_mappings_are_restored_without_claiming_memory(
    size: int, prot: int, flags: int, reserves: bool
) -> None:
    numbers = (4096, 4096 + size, 0, 0, prot, flags, mm.ANON_PRIVATE)
    vma = wire.encode((number, wire.VARINT, value) for number, value in enumerate(numbers, 1))
    places = ((number, wire.VARINT, 1) for number in range(1, 13))
    image = one(magics.MM, *places, (13, wire.VARINT, 1), (14, wire.BYTES, vma), (14, wire.BYTES, vma))
    changed = claim_nothing(image)
    assert (changed != image) == reserves
    wanted = flags | (mm.MAP_NORESERVE if reserves else 0)
    assert [found.flags for found in read_mm(changed).vmas] == [wanted, wanted]
    assert claim_nothing(changed) == changed
