"""Unix and inet sockets."""

from __future__ import annotations

import pytest
from image_trees import WHERE, one

from crckpt.errors import IntegrityError
from crckpt.images import magics, sockets, wire
from crckpt.images.files import read_files
from crckpt.images.framing import read_image
from crckpt.images.tree import ImageTree


def test_unix_sockets_are_read_from_the_image(tree: ImageTree, images: dict[str, bytes]) -> None:
    found = [file for file in tree.files if isinstance(file, sockets.UnixSocket)]
    pair = [socket for socket in found if socket.peer]
    assert {socket.inode for socket in pair} == {socket.peer for socket in pair}
    assert {(socket.type, socket.state) for socket in pair} == {(sockets.STREAM, sockets.ESTABLISHED)}
    (listener,) = (socket for socket in found if socket.is_listening)
    assert (listener.name, listener.directory, listener.backlog) == ("listener.sock", WHERE, 5)
    assert "unix datagram @crckpt-images (close)" in [socket.title for socket in found]
    assert not any(socket.external or socket.deleted for socket in found)
    assert [record.extra for record in read_image(images["sk-queues.img"]).records] == [b"to the right"]


def test_inet_sockets_are_read_from_the_image(tree: ImageTree, images: dict[str, bytes]) -> None:
    assert {socket.title for socket in tree.inet_sockets if socket.is_listening} == {
        "tcp 127.0.0.1:47001 (listen)",
        "tcp [::1]:47002 (listen)",
    }
    client, server = sorted(tree.established, key=lambda socket: socket.source.port == 47001)
    assert (client.destination, server.source) == (server.source, sockets.Address("127.0.0.1", 47001))
    assert client.source == server.destination
    assert read_image(images[f"tcp-stream-{server.inode:x}.img"]).records[0].extra == b"unread"
    assert "udp 127.0.0.1:47003 (close)" in [socket.title for socket in tree.inet_sockets]
    assert "netlink protocol 0" in [file.title for file in tree.files]


def test_address_with_a_wrong_length_is_refused() -> None:
    socket = [(number, wire.VARINT, 2) for number in range(1, 9)] + [(11, wire.VARINT, 1)] * 3
    data = one(magics.FILES, (1, wire.VARINT, 4), (2, wire.VARINT, 7), (4, wire.BYTES, wire.encode(socket)))
    with pytest.raises(IntegrityError, match=r"f\.img: an address of family 2 has 3 words"):
        read_files(data, "f.img")
