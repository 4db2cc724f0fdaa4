"""Other files in the place of a tree's terminals."""

from __future__ import annotations

from crckpt.images import magics
from crckpt.images.files import read_files
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.processes import read_descriptors
from crckpt.images.regfile import RegularFile
from crckpt.images.tty import NO_INPUT, OUTPUT, Terminal, TerminalFiles
from crckpt.images.wire import BYTES, VARINT, encode

TTY_DATA = 0x59413026
PLAN = TerminalFiles(files=frozenset({5}), infos=frozenset({8}))


def image(magic: int, *messages: bytes) -> bytes:
    return write_image(Image(magic, tuple(map(Record, messages))))


def edited(name: str, data: bytes) -> bytes:
    edit = PLAN.edit(name)
    assert edit is not None
    return edit(data)


def open_terminal(number: int) -> bytes:
    owner = encode((field, VARINT, 0) for field in range(1, 6))
    entry = encode(((1, VARINT, number), (2, VARINT, 8), (3, VARINT, 2), (4, BYTES, owner)))
    return encode(((1, VARINT, 11), (2, VARINT, number), (19, BYTES, entry)))


def test_open_terminal_in_an_image_becomes_a_file() -> None:
    outside, inside, spare = read_files(edited("files.img", image(magics.FILES, open_terminal(5), open_terminal(6))))
    assert isinstance(outside, RegularFile)
    assert (outside.id, outside.path) == (5, f"/{OUTPUT}")
    assert isinstance(inside, Terminal)
    assert isinstance(spare, RegularFile)
    assert spare.path == f"/{NO_INPUT}"


def test_terminal_as_standard_input_gets_a_file_of_its_own() -> None:
    entries = (
        encode(((1, VARINT, number), (2, VARINT, 1), (3, VARINT, 11), (4, VARINT, fd)))
        for number, fd in ((5, 0), (5, 1), (6, 2))
    )
    first, second, third = read_descriptors(edited("fdinfo-2.img", image(magics.FDINFO, *entries)))
    assert first.file_id not in (5, 6)
    assert (second.file_id, third.file_id) == (5, 6)
    assert first.close_on_exec


def test_unread_input_of_a_terminal_is_dropped_from_the_image() -> None:
    data = image(TTY_DATA, *(encode(((1, VARINT, number), (2, BYTES, b"typed"))) for number in (8, 9)))
    (left,) = read_image(edited("tty-data.img", data)).records
    assert left.payload.startswith(b"\x08\x09")


def test_images_without_terminals_are_not_edited() -> None:
    assert PLAN.edit("core-1.img") is None
