"""The first and the last part of logs of any size, and of streams."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.host.disk.log_excerpt import MOST_STREAMED, EndlessError, NoFileError, read_file_ends, read_stream_ends

MOST_BYTES = 1 << 21


@pytest.mark.parametrize("size", [0, 1, MOST_BYTES - 1, MOST_BYTES])
def test_short_log_is_read_completely(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "log").write_bytes(content)
    assert read_file_ends(tmp_path / "log", MOST_BYTES) == content


def test_only_start_and_end_of_a_long_log_are_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 40)
        file.write(b"end")
    read = read_file_ends(tmp_path / "log", MOST_BYTES)
    assert len(read) == MOST_BYTES + 1
    assert (read[:5], read[-3:], read[MOST_BYTES // 2 : MOST_BYTES // 2 + 1]) == (b"begin", b"end", b"\n")


def test_log_behind_a_symbolic_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("content")
    (tmp_path / "link").symlink_to("log")
    assert read_file_ends(tmp_path / "link") == b"content"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("directory", "is a directory"),
        ("fifo", "is a named pipe, not a file"),
        ("device", "is a device, not a file"),
        ("socket", "is a socket, not a file"),
    ],
)
def test_special_file_in_place_of_a_log_is_reported_without_blocking(tmp_path: Path, kind: str, message: str) -> None:
    path = tmp_path / "log"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    with pytest.raises(NoFileError) as caught:
        read_file_ends(path)
    assert caught.value.strerror == message


def stream(chunks: Iterator[bytes]) -> int:
    """A pipe into which all of that is written; its end to read from."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            try:
                for chunk in chunks:
                    file.write(chunk)
            except BrokenPipeError:
                pass

    threading.Thread(target=write, daemon=True).start()
    return reading


def test_log_from_a_stream_is_read_like_a_file() -> None:
    for size in (0, 100, MOST_BYTES, 3 * MOST_BYTES):
        content = os.urandom(size)
        reading = stream(iter([content]))
        read = read_stream_ends(reading, MOST_BYTES)
        os.close(reading)
        if size <= MOST_BYTES:
            assert read == content
        else:
            assert read == content[: MOST_BYTES // 2] + b"\n" + content[-MOST_BYTES // 2 :]


def test_file_given_as_stdin_is_read_from_its_offset(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"first second")
    with (tmp_path / "log").open("rb") as file:
        assert read_stream_ends(file.fileno()) == b"first second"
        os.lseek(file.fileno(), 6, os.SEEK_SET)
        assert read_stream_ends(file.fileno()) == b"second"


def test_endless_stream_in_place_of_a_log_is_refused() -> None:
    with Path("/dev/zero").open("rb") as zeros, pytest.raises(EndlessError) as caught:
        read_stream_ends(zeros.fileno(), MOST_BYTES)
    assert caught.value.strerror == f"is longer than {MOST_STREAMED >> 20} MiB"
