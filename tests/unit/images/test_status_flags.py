"""Flags that CRIU could not set when it makes a file are left out; nothing else changes."""

import os

import pytest

from crckpt.images import magics
from crckpt.images.framing import Image, Record, read_messages, write_image
from crckpt.images.repairs import drop_status_flags
from crckpt.images.wire import BYTES, VARINT, encode

FIFO_PATH, TERMINAL, INOTIFY, PIDFD = (1, 3, 2, 5), (11, 19, 3, 4), (8, 13, 2, 4), (20, 22, 3, 5)


def _image(kind: tuple[int, int, int, int], flags: int, owner: int) -> bytes:
    type_, entry, number, owner_number = kind
    content = encode(((1, VARINT, 9), (number, VARINT, flags), (owner_number, BYTES, encode(((5, VARINT, owner),)))))
    record = encode(((1, VARINT, type_), (2, VARINT, 9), (entry, BYTES, content)))
    return write_image(Image(magics.FILES, (Record(record),)))


@pytest.mark.parametrize(
    ("kind", "flags", "owner", "left"),
    [
        pytest.param(FIFO_PATH, os.O_ASYNC | os.O_RDWR, 7, os.O_RDWR, id="named pipe"),
        pytest.param(TERMINAL, os.O_ASYNC | os.O_APPEND, 7, os.O_APPEND, id="terminal"),
        pytest.param(FIFO_PATH, os.O_ASYNC, 0, os.O_ASYNC, id="nobody gets its signals"),
        pytest.param(INOTIFY, os.O_ASYNC | os.O_NONBLOCK, 0, os.O_NONBLOCK, id="inotify"),
        pytest.param(INOTIFY, os.O_NONBLOCK | os.O_CLOEXEC, 7, os.O_NONBLOCK | os.O_CLOEXEC, id="usual inotify"),
        pytest.param(PIDFD, os.O_APPEND | os.O_EXCL, 0, os.O_EXCL, id="pidfd of a thread"),
    ],
)
def test_only_flags_that_would_be_lost_are_left_out(
    kind: tuple[int, int, int, int], flags: int, owner: int, left: int
) -> None:
    repaired = drop_status_flags(_image(kind, flags, owner))
    assert read_messages(repaired, "files.img", magics.FILES)[0].message(kind[1]).uint(kind[2]) == left
    assert (repaired == _image(kind, flags, owner)) is (left == flags)
