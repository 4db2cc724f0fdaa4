"""Timers that CRIU would restore disarmed get a time to fire; nothing else changes."""

import pytest

from crckpt.images import magics
from crckpt.images.files import read_files
from crckpt.images.framing import Image, Record, read_messages, write_image
from crckpt.images.repairs import rearm_timers
from crckpt.images.wire import BYTES, VARINT, encode


def _image(ticks: int, value: tuple[int, int], interval: tuple[int, int]) -> bytes:
    owner = encode(((1, VARINT, 0), (2, VARINT, 0), (3, VARINT, 0), (4, VARINT, 0), (5, VARINT, 0)))
    numbers = (1, ticks, 0, *value, *interval)
    timer = encode(
        (
            *((1, VARINT, 9), (2, VARINT, 0o4000), (3, BYTES, owner)),
            *((number, VARINT, given) for number, given in zip(range(4, 11), numbers, strict=True)),
        )
    )
    entry = encode(((1, VARINT, 17), (2, VARINT, 9), (12, BYTES, timer)))
    return write_image(Image(magics.FILES, (Record(entry),)))


def test_periodic_timer_with_an_unread_expiry_is_armed() -> None:
    """The timer fires after one interval and keeps its ticks."""
    mended = rearm_timers(_image(3, (0, 0), (2, 500)))
    timer = read_messages(mended, "files.img", magics.FILES)[0].message(12)
    assert [timer.uint(number) for number in range(5, 11)] == [3, 0, 2, 500, 2, 500]
    assert [opened.kind for opened in read_files(mended)] == ["timerfd"]
    assert rearm_timers(mended) == mended


@pytest.mark.parametrize(
    ("ticks", "value", "interval"),
    [
        pytest.param(0, (0, 1), (2, 0), id="armed"),
        pytest.param(1, (0, 1), (2, 0), id="armed, with ticks"),
        pytest.param(0, (0, 0), (2, 0), id="disarmed"),
        pytest.param(1, (0, 0), (0, 0), id="fired once, for good"),
    ],
)
def test_timers_without_an_unread_expiry_are_unchanged(
    ticks: int, value: tuple[int, int], interval: tuple[int, int]
) -> None:
    """The edited image is the same byte for byte."""
    image = _image(ticks, value, interval)
    assert rearm_timers(image) == image
