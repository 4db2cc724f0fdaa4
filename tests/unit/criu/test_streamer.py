"""The streamer, asked as CRIU asks: a name through its socket, the file through a pipe."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from crckpt.criu.streamer import Images, Streamer, serving
from crckpt.errors import IntegrityError, Interrupted
from crckpt.host.process.signals import handle_interrupts, interrupts_deferred

LARGE = os.urandom(5 << 20)
# Parts are of 100,000 bytes: one that fits into a pipe, several, and one that does not.
FILES = {
    "inventory.img": b"small",
    "empty.img": b"",
    "core-1.img": LARGE[:65536],
    "ghost.img": LARGE[:90_000],
    "tmpfs.img": LARGE[:300_000],
    "pages-1.img": LARGE,
    "pages-2.img": LARGE[::-1],
}


class Client:
    """Speaks as CRIU does."""

    def __init__(self, streamer: Streamer) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(streamer.directory / "streamer-serve.sock"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, name: str) -> None:
        message = b"\x0a" + bytes([len(name)]) + name.encode()
        self._socket.sendall(struct.pack("<I", len(message)) + message)

    def has_lost_us(self) -> bool:
        try:
            return not self._socket.recv(1)
        except ConnectionResetError:
            return True

    def hear(self, count: int) -> None:
        """That many bytes of an answer."""
        if count:
            assert len(self._socket.recv(count, socket.MSG_WAITALL)) == count

    def open(self, name: str) -> int | None:
        """The end of a pipe to read the file from; None if there is no such file."""
        self.ask(name)
        return self.answer()

    def answer(self) -> int | None:
        answer = self._socket.recv(4 + 2, socket.MSG_WAITALL)
        if answer == b"\x02\0\0\0\x08\0":
            return None
        assert answer == b"\x02\0\0\0\x08\x01"
        ours, theirs = os.pipe()
        socket.send_fds(self._socket, [b"\0"], [theirs])
        os.close(theirs)
        return ours


def parts(content: bytes) -> Iterator[memoryview]:
    return (memoryview(content)[at : at + 100_000] for at in range(0, len(content), 100_000))


def images(name: str) -> Iterator[memoryview] | None:
    return parts(FILES[name]) if name in FILES else None


def read(pipe: int | None) -> bytes:
    assert pipe is not None
    with os.fdopen(pipe, "rb") as file:
        return file.read()


@contextmanager
def connected(base: Path, source: Images = images) -> Iterator[tuple[Streamer, Client]]:
    directory = base / "images"
    directory.mkdir()
    with serving(directory) as streamer, Client(streamer) as client:
        streamer.serve(source)
        yield streamer, client


def test_streamer_serves_files_unchanged(tmp_path: Path) -> None:
    with connected(tmp_path) as (streamer, client):
        for name, content in FILES.items():
            assert read(client.open(name)) == content
            assert read(client.open(name)) == content, "CRIU may ask twice"
        streamer.check()


def test_streamer_reports_a_missing_file(tmp_path: Path) -> None:
    with connected(tmp_path) as (_, client):
        assert client.open("no.img") is None
        assert read(client.open("inventory.img")) == b"small"


def test_streamer_serves_several_files_at_once(tmp_path: Path) -> None:
    """The processes of a tree read their memory at the same time: a file that waits does not block another."""
    with connected(tmp_path) as (_, client):
        first, second = client.open("pages-1.img"), client.open("pages-2.img")
        assert read(second) == LARGE[::-1]
        assert read(first) == LARGE


def test_directory_of_the_streamer_may_have_a_long_path(tmp_path: Path) -> None:
    """A path to a socket has at most 107 bytes."""
    base = tmp_path / ("d" * 100) / ("e" * 100)
    base.mkdir(parents=True)
    with connected(base) as (_, client):
        assert read(client.open("inventory.img")) == b"small"


def test_damaged_file_is_cut_short_by_the_streamer_and_the_damage_is_raised(tmp_path: Path) -> None:
    def damaged(_: str) -> Iterator[memoryview]:
        yield memoryview(LARGE)
        raise IntegrityError("frame 7: its SHA-256 does not match")

    with connected(tmp_path, damaged) as (streamer, client):
        assert read(client.open("pages-1.img")) == LARGE
        client.__exit__()
        streamer.close()
        with pytest.raises(IntegrityError, match="frame 7"):
            streamer.check()


def test_damage_of_a_file_that_criu_only_requested_is_raised(tmp_path: Path) -> None:
    def damaged(_: str) -> Iterator[memoryview]:
        raise IntegrityError("frame 7: its SHA-256 does not match")

    with connected(tmp_path, damaged) as (streamer, client):
        with pytest.raises(AssertionError):
            client.open("files.img")
        streamer.close()
        with pytest.raises(IntegrityError, match="frame 7"):
            streamer.check()


def test_streamer_ends_normally_if_criu_stops_reading(tmp_path: Path) -> None:
    with connected(tmp_path) as (streamer, client):
        pipe = client.open("pages-1.img")
        assert pipe is not None
        os.read(pipe, 1)
        os.close(pipe)
        client.__exit__()
        streamer.close()
        streamer.check()


@pytest.mark.parametrize("received", [0, 6])
def test_streamer_ends_normally_if_criu_ends_during_a_request(tmp_path: Path, received: int) -> None:
    """CRIU's log has the reason. The closed connection is no failure of ours."""
    with serving(tmp_path) as streamer:
        streamer.serve(images)
        with Client(streamer) as criu:
            criu.ask("pages-1.img")
            criu.hear(received)
    streamer.check()


def test_streamer_ends_if_criu_never_connects(tmp_path: Path) -> None:
    with serving(tmp_path):
        pass


def test_criu_waits_for_streamed_images_that_are_not_ready(tmp_path: Path) -> None:
    with serving(tmp_path) as streamer, Client(streamer) as client:
        client.ask("inventory.img")
        streamer.serve(images)
        assert read(client.answer()) == b"small"


def test_criu_ends_if_the_streamer_refuses_images(tmp_path: Path) -> None:
    with serving(tmp_path) as streamer, Client(streamer) as client:
        client.ask("inventory.img")
        streamer.refuse()
        assert client.has_lost_us()
        streamer.check()


def test_interruption_of_crckpt_cuts_streamed_files_short(tmp_path: Path) -> None:
    """CRIU itself must not be interrupted. Without its images it fails, and undoes its work."""
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in asking]
    handle_interrupts()
    try:
        with connected(tmp_path) as (_, client), suppress(Interrupted), interrupts_deferred():
            pipe = client.open("pages-1.img")
            assert pipe is not None
            os.read(pipe, 1)
            signal.raise_signal(signal.SIGINT)
            assert len(read(pipe)) < len(LARGE) - 1
    finally:
        for number, handler in zip(asking, before, strict=True):
            signal.signal(number, handler)
