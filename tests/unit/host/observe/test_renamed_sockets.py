"""A socket gets its later name again, and nothing that another program uses loses its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.host.observe.sock_diag import find_renamed, rename_again
from crckpt.host.syscalls import openat2


@pytest.fixture
def bound_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that is bound as `tmp`, and whose file has that name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        held.bind(str(tmp_path / "tmp"))
        held.listen()
        yield held


def leave_socket(path: Path) -> None:
    """Leave the file of a socket that no process has."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))


def names(directory: Path) -> list[str]:
    """The names in a directory."""
    return sorted(found.name for found in directory.iterdir())


def test_renamed_socket_is_created_under_a_free_name(bound_socket: socket.socket, tmp_path: Path) -> None:
    rename_again(bound_socket, "name")
    renamed = find_renamed(bound_socket)
    assert renamed is not None
    assert (renamed.new, names(tmp_path)) == ("name", ["name"])


def test_renamed_socket_replaces_one_that_nobody_uses(bound_socket: socket.socket, tmp_path: Path) -> None:
    leave_socket(tmp_path / "name")
    rename_again(bound_socket, "name")
    assert names(tmp_path) == ["name"]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_renamed_socket_does_not_replace_one_of_a_running_server(
    bound_socket: socket.socket, tmp_path: Path, kind: int
) -> None:
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(tmp_path / "name"))
        if kind != socket.SOCK_DGRAM:
            server.listen()
        server.setblocking(False)
        with pytest.raises(FileExistsError):
            rename_again(bound_socket, "name")
        assert names(tmp_path) == ["name", "tmp"]
        with pytest.raises(BlockingIOError):
            server.recv(1) if kind == socket.SOCK_DGRAM else server.accept()


@pytest.mark.parametrize("had", ["nothing", "a socket"])
def test_renamed_socket_does_not_replace_a_file_created_after_the_check(
    bound_socket: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: str
) -> None:
    """In /tmp, another user may create a file with that name between check and rename."""
    name = tmp_path / "name"
    if had == "a socket":
        leave_socket(name)
    rename = openat2.rename_within

    def come_between(directory: int, old: str, new: str, flags: int) -> None:
        if flags == (openat2.RENAME_NOREPLACE if had == "nothing" else openat2.RENAME_EXCHANGE) and not came:
            came.append(True)
            name.unlink(missing_ok=True)
            name.write_text("theirs")
        rename(directory, old, new, flags)

    came: list[bool] = []
    monkeypatch.setattr("crckpt.host.observe.sock_diag.rename_within", come_between)
    with pytest.raises(OSError, match=r"another|replaced|exists"):
        rename_again(bound_socket, "name")
    assert name.read_text() == "theirs"
    assert (tmp_path / "tmp").is_socket()
