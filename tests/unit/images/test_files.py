"""files.img: every open file."""

from __future__ import annotations

from image_trees import one
from msgspec.structs import replace

from crckpt.images import magics, regfile, wire
from crckpt.images.files import edit_files, read_files
from crckpt.images.framing import read_image, write_image
from crckpt.images.other_files import OtherFile
from crckpt.images.repairs import put_listeners_first
from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageTree


def test_all_file_kinds_are_known(tree: ImageTree, images: dict[str, bytes]) -> None:
    assert [file for file in tree.files if file.kind == "unknown"] == []
    links = [file for file in tree.regular_files if file.remap and file.remap.kind == regfile.LINKED]
    assert len(tree.files) + len(links) == len(read_files(images["files.img"]))


def test_file_of_an_unknown_type_is_read_as_unknown() -> None:
    data = one(magics.FILES, (1, wire.VARINT, 99), (2, wire.VARINT, 7))
    assert read_files(data) == (OtherFile(7, "unknown", 0),)


def test_listening_sockets_come_before_their_connections_in_the_image(images: dict[str, bytes]) -> None:
    """The order is the only change."""
    data = images["files.img"]
    image = read_image(data)
    last = write_image(replace(image, records=image.records[::-1]))
    files = read_files(put_listeners_first(last))
    listening = [isinstance(file, UnixSocket) and file.is_listening for file in files]
    assert listening == sorted(listening, reverse=True)
    assert any(listening)
    assert {*files} == {*read_files(data)}
    assert put_listeners_first(put_listeners_first(last)) == put_listeners_first(last)


def test_editing_paths_in_the_image_of_files_changes_nothing_else(tree: ImageTree, images: dict[str, bytes]) -> None:
    data = images["files.img"]
    before = {file.id: file for file in read_files(data)}
    regular = next(file for file in tree.regular_files if file.size)
    socket = next(file for file in before.values() if isinstance(file, UnixSocket) and file.directory)
    after = edit_files(data, {regular.id: "/other/\udcff", socket.id: "/there"}, {regular.id})
    changed = {
        regular.id: replace(before[regular.id], path="/other/\udcff", size=None),
        socket.id: replace(socket, directory="/there"),
    }
    assert {file.id: file for file in read_files(after)} == before | changed
    assert edit_files(data, {}) == data
