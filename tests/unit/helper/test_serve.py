"""A helper handles peers that send invalid messages, too many, or none; and messages arrive completely."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from msgspec import Struct
from other_user import as_user
from smaller_bounds import smaller_bounds

from crckpt.helper import serve
from crckpt.helper.channel import Channel, HelperEnded, HelperOutdated, HelperSilent, close_all
from crckpt.helper.kinds import KEEPER
from crckpt.helper.serve import Server
from crckpt.host.opened import is_trusted, peer_pid

PATIENCE_S = 30.0
MOST_PEERS = 64


class Question(Struct, frozen=True):
    """A request, whose answer has the same text."""

    text: str


class Answer(Struct, frozen=True):
    """An answer."""

    text: str


@contextmanager
def served(path: Path) -> Iterator[Path]:
    """A helper's socket, answered until the block ends."""
    ended, ending = os.pipe()
    server = Server(
        KEEPER,
        Question,
        lambda peer, question, _descriptors: server.answer(peer, Answer(question.text)),
        lambda _peer: None,
        Answer,
    )
    with server.listen(path), ExitStack() as stack:
        for descriptor in (ended, ending):
            stack.callback(os.close, descriptor)
        stack.callback(server.close)
        over: list[int] = []
        server.waiting.watch(ended, over.append)

        def serve_all() -> None:
            while not over:
                server.waiting.wait()

        thread = threading.Thread(target=serve_all, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            os.write(ending, b"x")
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[Path]:
    tmp_path.chmod(0o700)
    with served(tmp_path / "socket") as path:
        yield path


@contextmanager
def connected(path: Path) -> Iterator[Channel]:
    # With a timeout, a queue that is full would be an error at once.
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    connection.settimeout(PATIENCE_S)
    with closing(Channel(KEEPER, connection)) as channel:
        yield channel


def answers(path: Path) -> bool:
    with connected(path) as channel:
        return channel.ask(Question("well?"), Answer, PATIENCE_S).text == "well?"


@pytest.mark.parametrize("packet", [b"hello", b"\n", b"\0", b"\xff\xfe\0", b'{"do": "sleep"}', b"[" * 60_000, b"null"])
def test_helper_refuses_an_unknown_request(socket_path: Path, packet: bytes) -> None:
    with connected(socket_path) as channel:
        channel.connection.send(packet)
        assert "unknown request" in channel.receive(Answer, PATIENCE_S).text
        assert channel.ask(Question("well?"), Answer, PATIENCE_S).text == "well?"
    assert answers(socket_path)


def test_helper_drops_a_peer_that_reads_no_answers(socket_path: Path) -> None:
    with smaller_bounds(serve, _PATIENCE_S=0.2), connected(socket_path) as deaf:
        assert is_dropped(deaf)
        assert answers(socket_path)


def is_dropped(peer: Channel) -> bool:
    """Return whether the peer is dropped after so many requests."""
    try:
        for _ in range(100_000):
            peer.send(Question("well?" * 100))
    except HelperEnded:
        return True
    return False


def test_helper_answers_others_although_many_peers_are_silent(socket_path: Path) -> None:
    with ExitStack() as stack:
        for _ in range(3 * MOST_PEERS):
            stack.enter_context(connected(socket_path))
        assert answers(socket_path)


def test_message_to_a_helper_larger_than_a_packet_arrives(socket_path: Path) -> None:
    with connected(socket_path) as channel:
        assert len(channel.ask(Question("x" * 3_000_000), Answer, PATIENCE_S).text) == 3_000_000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_helper_does_not_answer_other_users(socket_path: Path) -> None:
    socket_path.chmod(0o777)
    # Only root can enter the directory, but a process that is already in it can connect.
    directory = os.open(socket_path.parent, os.O_PATH)
    socket_path.parent.chmod(0o711)

    def check() -> None:
        os.chdir(directory)
        with connected(Path(socket_path.name)) as channel, pytest.raises(HelperEnded):
            channel.ask(Question("well?"), Answer, PATIENCE_S)

    as_user(check)
    os.close(directory)
    assert answers(socket_path)


def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(KEEPER, ours), Channel(KEEPER, theirs)


def test_descriptors_sent_to_a_helper_arrive_with_their_message() -> None:
    ours, theirs = pair()
    reading, writing = os.pipe()
    with closing(ours), closing(theirs):
        for text in ("short", "long" * 100_000):
            ours.send(Question(text), (writing,))
            question, descriptors = theirs.receive_descriptors(Question, PATIENCE_S)
            assert question.text == text
            assert [os.fstat(each).st_ino for each in descriptors] == [os.fstat(writing).st_ino]
            close_all(descriptors)
    close_all((reading, writing))


def test_silent_ended_and_older_helpers_raise_different_errors() -> None:
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        with pytest.raises(HelperSilent, match="does not answer") as silent:
            ours.receive(Answer, 0.01)
        assert f"kill -KILL {os.getpid()}" in silent.value.hint
        theirs.connection.send(b"?")
        with pytest.raises(HelperOutdated, match="another version"):
            ours.receive(Answer, PATIENCE_S)
        assert not ours.has_ended()
        theirs.close()
        assert ours.has_ended()
        with pytest.raises(HelperEnded, match="has ended"):
            ours.receive(Answer, PATIENCE_S)


def test_pid_of_a_peer_is_read_from_the_kernel() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert is_trusted(ours)
        assert peer_pid(ours) == os.getpid()
