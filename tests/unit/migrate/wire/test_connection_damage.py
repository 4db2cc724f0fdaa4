"""Any data on a connection ends in an error that describes it: no hang, no traceback, bounded memory."""

from __future__ import annotations

import os
import random
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from connections import HELLO, half_connected, in_thread
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sets import ONE_PROCESS, manifest_path, open_store, packs, store

from crckpt.errors import IntegrityError, RemoteError
from crckpt.migrate.transfer.receive_packs import Receiver
from crckpt.migrate.transfer.send_packs import send_packs
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import AbortReceived, Connection, ConnectionLost
from crckpt.migrate.wire.connection_errors import ConnectionEnded
from crckpt.migrate.wire.frames import HEADER_BYTES, MESSAGE, MOST_PAYLOAD, make_frame, read_header
from crckpt.migrate.wire.messages import Abort, CheckRestore, Hello, Lacking, Offer, RestoreOptions
from crckpt.model import CheckpointId, MoveId, PackId
from crckpt.store import Repository

FUZZ = settings(max_examples=examples(60))
MOST_MEMORY = 8 << 20
"""Bytes that a destination may take for what a source of this conversation says: its buffers are most of it."""


class Conversation:
    """What a source says to a destination, recorded, and a store for destinations that it is played to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = open_store(directory)
        checkpoint = store(self.source, directory, ONE_PROCESS)
        manifest = manifest_path(self.source, checkpoint.id).read_bytes()
        self.frames = list(self._record(checkpoint.id, tuple(use.digest for use in checkpoint.packs), manifest))
        self.content = b"".join(self.frames)
        kinds = [type(decode_frame(frame)) for frame in self.frames]
        self.until_offer = b"".join(self.frames[: kinds.index(Offer) + 1])

    def _record(self, made: CheckpointId, digests: tuple[PackId, ...], manifest: bytes) -> Iterator[bytes]:
        recorded = bytearray()
        (to_destination, from_source), (to_source, from_destination) = os.pipe(), os.pipe()
        # Between the source and the destination: all that the source says.
        (reads, writes) = os.pipe()

        def pass_on() -> None:
            while content := os.read(to_destination, 1 << 20):
                recorded.extend(content)
                os.write(writes, content)
            os.close(writes)

        passing = in_thread(pass_on)
        with Connection(to_source, from_source, "destination") as source:
            destination = Connection(reads, from_destination, "source")
            serving = in_thread(lambda: serve(self.new_store("recorded"), destination))
            source.send(HELLO)
            source.receive(Hello)
            send_packs(source, self.source.backend, digests)
            source.send(CheckRestore(MoveId("0123456789abcdef"), made, manifest, RestoreOptions()))
            source.receive(messages.Verdict)
            source.send(Abort("the end"))
        serving.join()
        passing.join()
        os.close(to_destination)
        at = 0
        while at < len(recorded):
            end = at + HEADER_BYTES + read_header(bytes(recorded[at : at + HEADER_BYTES])).length
            yield bytes(recorded[at:end])
            at = end

    def new_store(self, name: str) -> Repository:
        """A new store."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return open_store(directory)

    def play(self, content: bytes) -> BaseException | None:
        """Play this to a destination; return the error that ended it.

        The store has all of the checkpoint, or nothing.
        """
        repository = self.new_store("played")
        with half_connected() as (destination, reads, writes):
            has_asked = threading.Event()
            answers = in_thread(partial(read_answers, os.dup(reads.fileno()), has_asked))

            def write() -> None:
                # A source sends packs only when it was asked for them.
                begun = self.until_offer if content.startswith(self.until_offer) else b""
                with suppress(BrokenPipeError):
                    writes.write(begun)
                    if begun:
                        has_asked.wait()
                    writes.write(content[len(begun) :])
                writes.close()

            writing = in_thread(write)
            error = serve(repository, destination)
            writing.join()
        answers.join()
        for path in packs(repository):
            assert path.read_bytes() == (self.source.root / path.relative_to(repository.root)).read_bytes()
            path.unlink()
        return error


def decode_frame(frame: bytes) -> messages.MoveMessage | None:
    """The message in a frame, if there is one."""
    return messages.decode(frame[HEADER_BYTES:]) if read_header(frame[:HEADER_BYTES]).kind == MESSAGE else None


def read_answers(descriptor: int, has_asked: threading.Event) -> None:
    """Read until the other end is closed; the event is set at Lacking, or at the end."""
    with open(descriptor, "rb") as file:
        while header := file.read(HEADER_BYTES):
            frame = header + file.read(read_header(header).length)
            if isinstance(decode_frame(frame), Lacking):
                has_asked.set()
    has_asked.set()


def serve(repository: Repository, connection: Connection) -> BaseException | None:
    """What a destination does, without a restore; returns the error that ends it."""
    with connection, repository.transaction() as begun:
        receiver = Receiver(repository, begun)
        try:
            connection.send(HELLO)
            connection.receive(Hello)
            while True:
                message = connection.receive(Offer, CheckRestore)
                if isinstance(message, Offer):
                    receiver.answer_offer(connection, message)
                elif isinstance(message, CheckRestore):
                    receiver.check_checkpoint(message.manifest, message.checkpoint)
                    connection.send(messages.Verdict((), ()))
        except (RemoteError, IntegrityError) as error:
            return error


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    """The conversation, recorded once."""
    return Conversation(tmp_path_factory.mktemp("conversation"))


def test_recorded_conversation_can_be_replayed(conversation: Conversation) -> None:
    error = conversation.play(conversation.content)
    assert type(error) is AbortReceived
    assert str(error) == "destination aborted the move: the end"


def test_conversation_cut_at_any_frame_is_reported_as_ended(conversation: Conversation) -> None:
    at = 0
    for frame in conversation.frames:
        for cut in {at, at + 1, at + HEADER_BYTES, at + len(frame) - 1}:
            error = conversation.play(conversation.content[:cut])
            assert type(error) is ConnectionEnded
            assert "has ended" in str(error)
        at += len(frame)


def test_bit_flip_in_any_frame_ends_the_connection(conversation: Conversation) -> None:
    chosen = random.Random(1)
    at = 0
    for number, frame in enumerate(conversation.frames):
        for place in {*range(HEADER_BYTES), HEADER_BYTES + chosen.randrange(len(frame))}:
            if place >= len(frame):
                continue
            content = bytearray(conversation.content)
            content[at + place] ^= 1 << chosen.randrange(8)
            error = conversation.play(bytes(content))
            assert isinstance(error, ConnectionLost), (number, place, error)
        at += len(frame)


@FUZZ
@given(data=st.data())
def test_lost_duplicated_and_swapped_frames_are_errors(conversation: Conversation, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(conversation.frames) - 1), max_size=12))
    error = conversation.play(b"".join(conversation.frames[number] for number in numbers))
    assert isinstance(error, RemoteError | IntegrityError)


@FUZZ
@given(st.binary(max_size=2000))
def test_random_bytes_end_the_connection(conversation: Conversation, content: bytes) -> None:
    assert isinstance(conversation.play(content), ConnectionLost)


@FUZZ
@given(st.integers(0, 1 << 16), st.binary(max_size=200))
def test_random_bytes_in_the_middle_end_the_connection(conversation: Conversation, at: int, noise: bytes) -> None:
    at %= len(conversation.content)
    error = conversation.play(conversation.content[:at] + noise + conversation.content[at:])
    assert isinstance(error, RemoteError | IntegrityError)


@FUZZ
@given(st.binary(max_size=300))
def test_unencodable_message_ends_the_connection(conversation: Conversation, content: bytes) -> None:
    header, payload = make_frame(MESSAGE, content)
    error = conversation.play(header + bytes(payload))
    assert isinstance(error, ConnectionLost)


def test_false_sizes_do_not_allocate_memory(conversation: Conversation) -> None:
    """The messages declare lengths and counts of gigabytes. Each message has its own connection."""
    lies = (
        b"\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00",
        MOST_PAYLOAD.to_bytes(4, "little") + b"\x02\x00\x00\x00\x00\x00\x00",
        *(
            b"".join(map(bytes, make_frame(MESSAGE, content)))
            for content in (
                b"\x82\xa4type\xa5Offer\xa7digests\xdd\x0f\xff\xff\xff",
                b"\x82\xa4type\xa9Questions\xa7content\xc6\xff\xff\xff\xff",
                b"\x82\xa4type\xa5Abort\xa3why\xdb\xff\xff\xff\xff",
            )
        ),
    )
    conversation.play(b"")
    for lie in lies:
        tracemalloc.start()
        try:
            error = conversation.play(conversation.frames[0] + conversation.frames[1] + lie)
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
        finally:
            tracemalloc.stop()
        assert isinstance(error, ConnectionLost)
