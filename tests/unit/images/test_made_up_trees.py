"""Forged images: crckpt reads what CRIU restores, or refuses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.tree import read_tree
from crckpt.images.wire import BYTES, VARINT, encode, fields

Fields = list[tuple[int, int, int | bytes]]
Images = dict[str, bytes]


def _changed(images: Images, name: str, change: Callable[[list[Fields]], list[Fields]]) -> None:
    image = read_image(images[name], name)
    records = change([list(fields(record.payload, name)) for record in image.records])
    images[name] = write_image(Image(image.magic, tuple(Record(encode(record)) for record in records)))


def _lock_of_a_stranger(images: Images) -> None:
    lock = encode((number, VARINT, value) for number, value in ((1, 2), (2, 1), (3, 4242), (4, 3), (5, 0), (6, 0)))
    images["filelocks.img"] = write_image(Image(magics.FILE_LOCKS, (Record(lock),)))


def _process_twice(images: Images) -> None:
    _changed(images, "pstree.img", lambda records: [records[0], *records])


def _numbered(number: int) -> Callable[[Images], None]:
    """Give the root another PID, of which CRIU takes the lowest 32 bits."""

    def attack(images: Images) -> None:
        for kind in ("core", "mm", "ids", "fs"):
            images[f"{kind}-{number}.img"] = images[f"{kind}-7993.img"]
        _changed(
            images,
            "pstree.img",
            lambda records: [[(1, VARINT, number), *records[0][1:]], *records[1:]],
        )

    return attack


def _two_files_of_one_id(images: Images) -> None:
    """CRIU would open one path, while crckpt shows the other."""

    def change(records: list[Fields]) -> list[Fields]:
        entry = next(record for record in records if (1, VARINT, 1) in record)
        (file,) = (value for number, _, value in entry if number == 3 and isinstance(value, bytes))
        other = [(n, kind, b"/etc/shadow" if n == 6 else value) for n, kind, value in fields(file)]
        return [*records, [(1, VARINT, 1), *entry[1:2], (3, BYTES, encode(other))]]

    _changed(images, "files.img", change)


def _port_beyond_number(images: Images) -> None:
    numbers = ((1, 77), (2, 5), (3, 2), (4, 1), (5, 6), (6, 10), (7, 1 << 40), (8, 0))
    socket = encode((number, VARINT, value) for number, value in numbers)
    _changed(images, "files.img", lambda records: [*records, [(1, VARINT, 4), (2, VARINT, 77), (4, BYTES, socket)]])


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (_lock_of_a_stranger, "process 4242 has a lock"),
        (_process_twice, "a process appears twice"),
        (_numbered(7993 + (1 << 32)), "an impossible PID"),
        (_numbered(0), "an impossible PID"),
        (_two_files_of_one_id, "two different files have the id 1"),
        (_port_beyond_number, "is not a port"),
    ],
)
def test_images_that_criu_reads_differently_are_refused(
    attack: Callable[[Images], None], message: str, images: Images
) -> None:
    made_up = dict(images)
    attack(made_up)
    with pytest.raises(IntegrityError, match=message):
        read_tree(made_up.__getitem__, made_up)
