"""Damaged, missing and contradictory images are refused by name, always with IntegrityError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crckpt.errors import IntegrityError
from crckpt.images import magics, wire
from crckpt.images.core import read_core
from crckpt.images.files import read_files
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.inventory import read_inventory
from crckpt.images.mm import read_mm
from crckpt.images.other_files import OtherFile
from crckpt.images.regfile import GHOST, LINKED, PROCESS, Remap, read_ghost, read_remaps
from crckpt.images.stats import RestoreStats, read_dump_stats, read_restore_stats
from crckpt.images.tree import ImageTree, read_tree

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
NOT_READ = ("pagemap-", "pipes-data", "fifo-data", "sk-queues", "tcp-stream-", "timens-", "seccomp", "stats-")
"""Images that a tree does not need."""


def one(magic: int, *items: tuple[int, int, int | bytes]) -> bytes:
    """Make an image with one record of these fields."""
    return write_image(Image(magic, (Record(wire.encode(items)),)))


def ends_of_records(data: bytes) -> set[int]:
    """Return the offsets at which an image is complete."""
    image = read_image(data)
    return {len(write_image(Image(image.magic, image.records[:count]))) for count in range(len(image.records) + 1)}


def words(tree: ImageTree) -> Iterator[str]:
    """Compute everything that is shown of a tree."""
    for process in tree.processes:
        yield from (process.comm, process.state)
        yield from (entry.file.title for entry in process.descriptors)
        yield from (vma.kind for vma in process.memory.vmas) if process.memory else ()
    yield from (file.title for file in tree.files)
    yield from (socket.title for socket in (*tree.listening, *tree.established))
    yield from (str(file.is_append_only) for file in tree.regular_files)


def read_damaged(images: dict[str, bytes], name: str, data: bytes) -> None:
    """Read the tree with one image changed. The test fails except for success and IntegrityError."""
    changed = images | {name: data}
    with contextlib.suppress(IntegrityError):
        list(words(read_tree(changed.__getitem__, changed)))
    with contextlib.suppress(IntegrityError):
        read_dump_stats(changed["stats-dump"])


@FUZZ
@given(st.data())
def test_flipped_bits(images: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(images)))
    damaged = bytearray(images[name])
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3)):
        damaged[at] ^= data.draw(st.integers(1, 255))
    read_damaged(images, name, bytes(damaged))


@FUZZ
@given(st.data())
def test_replaced_messages(images: dict[str, bytes], data: st.DataObject) -> None:
    """Right framing with any message: damage rarely makes that, an attacker might."""
    name = data.draw(st.sampled_from(sorted(name for name in images if not name.startswith(NOT_READ))))
    fields = st.tuples(st.integers(1, 22), st.just(wire.VARINT), st.integers(0, 2**64 - 1))
    nested = st.tuples(st.integers(1, 22), st.just(wire.BYTES), st.lists(fields, max_size=12).map(wire.encode))
    payload = wire.encode(data.draw(st.lists(st.one_of(fields, nested), max_size=30)))
    head = images[name][: 4 if name == "inventory.img" else 8]
    read_damaged(images, name, head + len(payload).to_bytes(4, "little") + payload)


@FUZZ
@given(st.data())
def test_cut_images_are_refused_by_name(images: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(name for name in images if not name.startswith((*NOT_READ, "ghost-")))))
    cuts = set(range(len(images[name]))) - ends_of_records(images[name])
    cut = images | {name: images[name][: data.draw(st.sampled_from(sorted(cuts)))]}
    with pytest.raises(IntegrityError, match=rf"^{name}: "):
        read_tree(cut.__getitem__, cut)


def test_missing_images_are_named(images: dict[str, bytes]) -> None:
    for name in images:
        without = {other: data for other, data in images.items() if other != name}
        if name.startswith((*NOT_READ, "ghost-", "remap-fpath", "tty-info", "fdinfo-", "files", "memfd")):
            continue
        with pytest.raises(IntegrityError, match=rf"^{name} is missing"):
            read_tree(without.__getitem__, without)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("files.img", r"names file \d+, which is not in files\.img"),
        ("memfd.img", r"memfd\.img: inode"),
        ("ghost-file-2.img", r"ghost-file-2\.img is missing"),
    ],
)
def test_referenced_entries_must_exist(images: dict[str, bytes], name: str, why: str) -> None:
    without = {other: data for other, data in images.items() if other != name}
    with pytest.raises(IntegrityError, match=why):
        read_tree(without.__getitem__, without)


def test_only_needed_images_are_read(images: dict[str, bytes]) -> None:
    seen: list[str] = []

    def read(name: str) -> bytes:
        seen.append(name)
        return images[name]

    read_tree(read, images)
    assert sorted(seen) == sorted(set(seen)), "an image is read twice"
    assert [name for name in seen if name.startswith((*NOT_READ, "ghost-"))] == ["ghost-file-2.img"]


def test_a_tree_without_processes_is_refused(images: dict[str, bytes]) -> None:
    empty = images | {"pstree.img": write_image(Image(magics.PSTREE, ()))}
    with pytest.raises(IntegrityError, match=r"pstree\.img: has no process"):
        read_tree(empty.__getitem__, empty)


def test_a_newer_format_is_refused_by_its_number(images: dict[str, bytes]) -> None:
    image = read_image(images["inventory.img"], "inventory.img")
    newer = Record(image.records[0].payload + wire.encode([(1, wire.VARINT, 3)]))
    with pytest.raises(IntegrityError, match=r"have CRIU's format 3, and this crckpt reads up to 2"):
        read_inventory(write_image(Image(image.magic, (newer,))))


def test_an_unknown_type_of_file_is_kept() -> None:
    data = one(magics.FILES, (1, wire.VARINT, 99), (2, wire.VARINT, 7))
    assert read_files(data) == (OtherFile(7, "unknown", 0),)


def test_an_address_of_wrong_length_is_refused() -> None:
    socket = [(number, wire.VARINT, 2) for number in range(1, 9)] + [(11, wire.VARINT, 1)] * 3
    data = one(magics.FILES, (1, wire.VARINT, 4), (2, wire.VARINT, 7), (4, wire.BYTES, wire.encode(socket)))
    with pytest.raises(IntegrityError, match=r"f\.img: an address of family 2 has 3 words"):
        read_files(data, "f.img")


def test_a_mapping_that_ends_before_it_starts_is_refused() -> None:
    vma = wire.encode((number, wire.VARINT, 8192 if number == 1 else 4096) for number in range(1, 8))
    places = [(number, wire.VARINT, 1) for number in range(1, 13)]
    with pytest.raises(IntegrityError, match=r"mm-1\.img: a mapping ends at 0x1000"):
        read_mm(one(magics.MM, *places, (14, wire.BYTES, vma)), "mm-1.img")


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
def test_remaps_of_old_and_new_criu(target: int, kind: int | None, remap: Remap) -> None:
    types = [] if kind is None else [(3, wire.VARINT, kind)]
    data = one(magics.REMAP_FPATH, (1, wire.VARINT, 9), (2, wire.VARINT, target), *types)
    assert read_remaps(data) == {9: remap}


def test_a_ghost_image_without_records_is_refused() -> None:
    with pytest.raises(IntegrityError, match=r"ghost-file-1\.img: field 1 is missing"):
        read_ghost(write_image(Image(magics.GHOST_FILE, ())), "ghost-file-1.img")


def test_an_unknown_architecture() -> None:
    assert read_core(one(magics.CORE, (1, wire.VARINT, 40))).arch == "unknown"
    assert read_core(one(magics.CORE, (1, wire.VARINT, 3))).arch == "aarch64"


def test_statistics_of_a_restore_are_not_those_of_a_dump() -> None:
    numbers = wire.encode((number, wire.VARINT, number * 10) for number in range(1, 5))
    data = one(magics.STATS, (2, wire.BYTES, numbers))
    assert read_restore_stats(data) == RestoreStats(10, 20, 30, 40, None)
    with pytest.raises(IntegrityError, match=r"stats-dump: has no statistics of a dump"):
        read_dump_stats(data)
