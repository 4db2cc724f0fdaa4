"""Damaged, missing and contradictory images are refused by name, always with IntegrityError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from image_trees import UNREAD_IMAGES

from crckpt.errors import IntegrityError
from crckpt.images import wire
from crckpt.images.framing import Image, read_image, write_image
from crckpt.images.inventory import read_dump_stats
from crckpt.images.tree import ImageTree, read_tree

FUZZ = settings(max_examples=examples(150))


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
    yield from (socket.title for socket in tree.inet_sockets)
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
def test_flipped_bits_are_damage_or_readable(images: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(images)))
    damaged = bytearray(images[name])
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3)):
        damaged[at] ^= data.draw(st.integers(1, 255))
    read_damaged(images, name, bytes(damaged))


@FUZZ
@given(st.data())
def test_replaced_messages_are_damage_or_readable(images: dict[str, bytes], data: st.DataObject) -> None:
    """The frames are right and contain any message, which an attacker rather than damage would produce."""
    name = data.draw(st.sampled_from(sorted(name for name in images if not name.startswith(UNREAD_IMAGES))))
    fields = st.tuples(st.integers(1, 22), st.just(wire.VARINT), st.integers(0, 2**64 - 1))
    nested = st.tuples(st.integers(1, 22), st.just(wire.BYTES), st.lists(fields, max_size=12).map(wire.encode))
    payload = wire.encode(data.draw(st.lists(st.one_of(fields, nested), max_size=30)))
    head = images[name][: 4 if name == "inventory.img" else 8]
    read_damaged(images, name, head + len(payload).to_bytes(4, "little") + payload)


@FUZZ
@given(st.data())
def test_images_that_are_cut_off_are_refused_by_name(images: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(
        st.sampled_from(sorted(name for name in images if not name.startswith((*UNREAD_IMAGES, "ghost-"))))
    )
    cuts = set(range(len(images[name]))) - ends_of_records(images[name])
    cut = images | {name: images[name][: data.draw(st.sampled_from(sorted(cuts)))]}
    with pytest.raises(IntegrityError, match=rf"^{name}: "):
        read_tree(cut.__getitem__, cut)
