"""A pipe that refers to our pages instead of having copies."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from own_process import descriptors

from crckpt.host.syscalls.process_vm import PIPE_SIZE, Lender

PAGE = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    before = descriptors()
    ends = os.pipe()
    yield ends
    os.close(ends[0])
    os.close(ends[1])
    assert descriptors() == before


def test_content_lent_to_a_pipe_arrives_unchanged(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    content = memoryview(bytearray(os.urandom(3 * PIPE_SIZE)))
    read = bytearray()

    def reader() -> None:
        while len(read) < len(content):
            read.extend(os.read(reading, PIPE_SIZE))

    thread = threading.Thread(target=reader)
    thread.start()
    lender, left = Lender(writing), content
    while left:
        left = left[lender.lend(left) :]
    thread.join()
    lender.close()
    assert read == content


def test_pages_lent_to_a_pipe_are_not_copied(pipe: tuple[int, int]) -> None:
    """The content must not change before the reader has it."""
    reading, writing = pipe
    content = memoryview(bytearray(b"before".ljust(PAGE)))
    lender = Lender(writing)
    assert lender.lend(content) == PAGE
    content[:6] = b"after "
    assert os.read(reading, PAGE).rstrip() == b"after"
    lender.close()


def test_lending_pages_to_a_pipe_without_a_reader_is_a_broken_pipe() -> None:
    reading, writing = os.pipe()
    lender = Lender(writing)
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        lender.lend(memoryview(bytearray(PAGE)))
    lender.close()
    os.close(writing)
