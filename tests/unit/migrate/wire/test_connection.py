"""Messages of one side reach the other; neither blocks the other, nor an interruption."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from connections import (
    HELLO,
    MOVE,
    PACK,
    PackCollector,
    SlowPackCollector,
    connected,
    frame,
    half_connected,
    in_thread,
    message_frame,
    repeat,
    send_forever,
)
from msgspec.structs import replace

from crckpt.errors import PreflightRefused, RemoteError
from crckpt.migrate.wire import frames, messages
from crckpt.migrate.wire.connection import Connection, ConnectionLost, ProtocolError
from crckpt.migrate.wire.frames import BEAT, DATA
from crckpt.migrate.wire.messages import (
    Abort,
    Aborted,
    Ended,
    Failed,
    Hello,
    Lacking,
    Offer,
    Questions,
    Running,
    Sent,
    Stored,
)
from crckpt.model import MoveId


def test_messages_arrive_in_order_in_both_directions() -> None:
    with connected() as (source, destination):
        source.send(HELLO)
        destination.send(replace(HELLO, hostname="there"))
        source.send(Ended(MoveId(MOVE)))
        assert destination.receive(Hello) == HELLO
        assert destination.receive(Stored, Ended) == Ended(MoveId(MOVE))
        assert source.receive(Hello).hostname == "there"


def test_connection_works_over_one_socket_for_both_directions() -> None:
    """sshd starts commands with a socket as standard input and output."""
    here, there = socket.socketpair()
    content = os.urandom(3 << 20)
    with (
        Connection(here.fileno(), os.dup(here.fileno()), "destination") as source,
        Connection(there.fileno(), os.dup(there.fileno()), "source") as destination,
    ):
        here.detach()
        there.detach()
        sending = in_thread(lambda: source.send(Questions(content)))
        destination.send(Questions(content))
        assert destination.receive(Questions) == source.receive(Questions) == Questions(content)
        sending.join()


def test_message_larger_than_a_frame_arrives() -> None:
    content = os.urandom(5 * frames.MOST_DATA + 17)
    with connected() as (source, destination):
        sending = in_thread(lambda: source.send(Questions(content)))
        assert destination.receive(Questions).content == content
        sending.join()


def test_too_large_message_is_not_sent() -> None:
    with connected() as (source, destination):
        with pytest.raises(RemoteError, match=r"Questions for destination has \d+ bytes, more than"):
            source.send(Questions(bytes(messages.MOST_BYTES)))
        source.send(Stored())
        assert destination.receive(Stored) == Stored()


def test_data_reaches_the_pack_receiver_before_later_messages() -> None:
    content, collected = os.urandom(3 << 20), PackCollector()
    with connected() as (source, destination), destination.receiving(collected):

        def send() -> None:
            source.send(PACK)
            for at in range(0, len(content), source.data_bytes):
                source.send_data(3, content[at : at + source.data_bytes])
            source.send(Sent())

        sending = in_thread(send)
        assert destination.receive(Sent) == Sent()
        sending.join()
    assert collected.packs == [PACK]
    assert collected.content == content


def test_both_sides_send_more_than_the_pipes_hold() -> None:
    content = os.urandom(16 << 20)
    collected = PackCollector(), PackCollector()

    def exchange(side: Connection) -> None:
        side.send(Questions(content))
        for at in range(0, len(content), side.data_bytes):
            side.send_data(3, content[at : at + side.data_bytes])
        side.send(Sent())
        assert side.receive(Questions).content == content
        side.receive(Sent)

    with (
        connected() as (source, destination),
        source.receiving(collected[0]),
        destination.receiving(collected[1]),
    ):
        other = in_thread(lambda: exchange(source))
        exchange(destination)
        other.join()
    assert collected[0].content == collected[1].content == content


def test_unexpected_message_of_the_other_host_is_reported() -> None:
    with connected() as (source, destination):
        source.send(Stored())
        with pytest.raises(ProtocolError, match="source sent Stored instead of Lacking or Offer"):
            destination.receive(Lacking, Offer)
        # The connection cannot be used any more.
        with pytest.raises(ProtocolError, match="Stored instead of"):
            destination.send(Aborted())


def test_failed_and_abort_raise_when_unexpected() -> None:
    with connected() as (source, destination):
        destination.send(Failed(24, "PID 5 is in use", "end it", ("one",)))
        with pytest.raises(PreflightRefused, match=r"\Adestination: PID 5 is in use\Z") as caught:
            source.receive(Running)
        assert caught.value.hint == "on destination: end it"
        source.send(Abort("^C"))
        with pytest.raises(RemoteError, match="source aborted the move: ^C".replace("^", r"\^")):
            destination.receive(Ended)
        # The connection can be used: the abort is answered.
        destination.send(Aborted())
        assert source.receive(Aborted) == Aborted()
        destination.send(Failed(1, "a bug"))
        assert source.receive(Running, Failed) == Failed(1, "a bug")


def test_answers_sent_before_an_abort_are_skipped() -> None:
    with connected() as (source, destination):
        destination.send(Stored())
        destination.send(Failed(1, "late"))

        def answer() -> None:
            assert destination.receive(Abort).why == "^C"
            destination.send(Aborted())

        thread = in_thread(answer)
        source.abort("^C", 60)
        thread.join()
        with pytest.raises(ConnectionLost, match=r"destination did not answer"):
            source.abort("again", 0.1)


def test_failed_message_ends_a_transfer() -> None:
    with connected() as (source, destination), destination.receiving(PackCollector()):
        source.send(PACK)
        destination.send(Failed(10, "the disk is full"))
        with pytest.raises(RemoteError, match="the disk is full"):
            send_forever(source)


def test_failed_message_is_read_after_the_other_side_ended() -> None:
    with half_connected() as (source, reads, writes):
        writes.write(message_frame(Failed(10, "the store is locked")))
        reads.close()
        with pytest.raises(RemoteError, match="the store is locked"):
            repeat(lambda: source.send(Stored()))


def test_receiver_error_is_raised_and_the_rest_discarded() -> None:
    class Full(PackCollector):
        def add(self, channel: int, content: memoryview) -> None:
            raise OSError(28, "No space left on device")

    with connected() as (source, destination):

        def send() -> None:
            source.send(PACK)
            with pytest.raises(RemoteError, match="No space"):
                send_forever(source)

        sending = threading.Thread(target=send)

        def receive() -> None:
            with destination.receiving(Full()):
                # Start to send only now, because a pack that nobody waits for ends the connection.
                sending.start()
                destination.receive(Sent)

        with pytest.raises(OSError, match="No space"):
            receive()
        destination.send(Failed(10, "No space left on device"))
        sending.join()


def test_heartbeats_are_sent_while_idle() -> None:
    with half_connected() as (_source, reads, _writes):
        beat = frame(BEAT)
        for _ in range(3):
            assert reads.read(len(beat)) == beat


INTERRUPTED_PROGRAM = """
import os
from crckpt.errors import Interrupted
from crckpt.host.process.signals import handle_interrupts, interrupts_deferred
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Abort, Stored
handle_interrupts()
side = Connection(0, 1, "test", patience_s=60)
try:
    side.send(Stored())
    @WAITS@
except Interrupted as interrupted:
    with interrupts_deferred():
        side.send(Abort(interrupted.message))
    side.close()
"""


@pytest.mark.parametrize("waits", ["side.receive(Stored)", "while True: side.send_data(0, bytes(side.data_bytes))"])
def test_interruption_is_raised_and_leaves_no_half_frame(waits: str) -> None:
    program = INTERRUPTED_PROGRAM.replace("@WAITS@", waits)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        slow = SlowPackCollector()
        try:
            with Connection(os.dup(peer.stdout.fileno()), os.dup(peer.stdin.fileno()), "peer") as side:
                with side.receiving(slow):
                    side.receive(Stored)
                    if "send" in waits:
                        slow.has_begun.wait()
                    peer.send_signal(signal.SIGINT)
                    slow.go.set()
                    with pytest.raises(RemoteError, match="peer aborted the move: interrupted by SIGINT"):
                        side.receive(Ended)
                assert peer.wait() == 0
        finally:
            peer.kill()


def test_sender_is_as_slow_as_the_reader_of_the_connection() -> None:
    content, slow = bytes(1 << 20), SlowPackCollector()
    with connected() as (source, destination), destination.receiving(slow):

        def send() -> None:
            source.send(PACK)
            for at in range(0, 16 * len(content), source.data_bytes):
                source.send_data(3, content[at % len(content) :][: source.data_bytes])
            source.send(Sent())

        sending = in_thread(send)
        slow.has_begun.wait()
        # The pipe and the queue hold a small part.
        assert sending.is_alive()
        slow.go.set()
        destination.receive(Sent)
        sending.join()


def test_data_waiting_for_a_slow_reader_is_not_silence() -> None:
    slow = SlowPackCollector()
    with half_connected(patience_s=0.2) as (source, _, writes), source.receiving(slow):
        writes.write(frame(BEAT) + message_frame(PACK) + frame(DATA, b"x", PACK.channel) + message_frame(Sent()))
        slow.has_begun.wait()
        time.sleep(0.5)
        slow.go.set()
        assert source.receive(Sent) == Sent()


def test_bandwidth_limits_the_data_of_a_connection() -> None:
    content, collected = os.urandom(100_000), PackCollector()
    with connected(bandwidth=200_000) as (source, destination), destination.receiving(collected):
        began = time.monotonic()
        source.send(PACK)
        for at in range(0, len(content), source.data_bytes):
            source.send_data(3, content[at : at + source.data_bytes])
        source.send(Sent())
        destination.receive(Sent)
        # The bandwidth delays all frames except the last one.
        assert time.monotonic() - began >= (len(content) - source.data_bytes) / 200_000
    assert collected.largest == source.data_bytes == 200_000 // 32


def test_message_is_sent_at_once_whatever_the_bandwidth() -> None:
    with connected(bandwidth=1) as (source, destination):
        source.send(Questions(bytes(1 << 20)))
        assert len(destination.receive(Questions).content) == 1 << 20


def test_descriptors_of_a_closed_connection_are_closed_or_blocking_again() -> None:
    (incoming, there), (reads, outgoing) = os.pipe(), os.pipe()
    kept = os.dup(outgoing)
    with Connection(incoming, outgoing, "there"):
        assert not os.get_blocking(kept)
    assert os.get_blocking(kept)
    for descriptor in (incoming, outgoing):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    for descriptor in (kept, there, reads):
        os.close(descriptor)
