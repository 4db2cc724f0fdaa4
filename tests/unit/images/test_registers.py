"""Registers in core-TID.img."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import recorded_images

from crckpt.errors import IntegrityError
from crckpt.images.core import features_in_use, read_registers
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.wire import encode, fields

NAME = f"core-{recorded_images.RECORDED.root.pid}.img"


def changed(content: bytes, *path: int, by: Callable[[bytes], bytes]) -> bytes:
    """The message with the first field of a path of field numbers changed."""
    items = list(fields(content))
    spot = next(at for at, (number, _, _) in enumerate(items) if number == path[0])
    number, kind, value = items[spot]
    assert isinstance(value, bytes)
    items[spot] = number, kind, changed(value, *path[1:], by=by) if len(path) > 1 else by(value)
    return encode(items)


@pytest.mark.parametrize(
    ("path", "lost", "why"),
    [
        ((2, 2), 1, "field 1 is missing"),
        ((2, 3), 9, "invalid floating-point registers"),
        ((2, 3, 13), 2, "invalid floating-point registers"),
    ],
)
def test_missing_registers_are_damage(path: tuple[int, ...], lost: int, why: str) -> None:
    """General registers, floating-point registers or the upper halves of vector registers are missing."""
    image = read_image(recorded_images.IMAGES[NAME], NAME)
    assert read_registers(recorded_images.IMAGES[NAME], NAME).is_native

    def without_first(content: bytes) -> bytes:
        items = list(fields(content))
        items.remove(next(item for item in items if item[0] == lost))
        return encode(items)

    damaged = Image(image.magic, (Record(changed(image.records[0].payload, *path, by=without_first)),))
    with pytest.raises(IntegrityError, match=why):
        read_registers(write_image(damaged), NAME)


def test_used_registers_show_cpu_features() -> None:
    """The recorded CPU has AVX-512, whose mask registers the C library uses. A zombie uses no registers."""
    root = f"core-{recorded_images.RECORDED.root.pid}.img"
    (zombie,) = (f"core-{process.pid}.img" for process in recorded_images.RECORDED.processes if process.memory is None)
    assert features_in_use(recorded_images.IMAGES[root], root) == {"avx512f"}
    assert features_in_use(recorded_images.IMAGES[zombie], zombie) == set()
