"""A peer that is gone, silent or wrong ends the connection with a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec
import pytest
from connections import (
    HELLO,
    PACK,
    frame,
    half_connected,
    in_thread,
    message_frame,
    repeat,
    send_forever,
)

from crckpt.errors import CrckptError, RemoteError
from crckpt.migrate.wire import frames, messages
from crckpt.migrate.wire.connection import Connection, ConnectionLost, PrintedText, ProtocolError
from crckpt.migrate.wire.frames import BEAT, DATA, MESSAGE, PART
from crckpt.migrate.wire.messages import (
    Ended,
    Hello,
    Sent,
    Stored,
)


def test_packs_that_were_not_requested_end_the_connection() -> None:
    for sent, name in ((message_frame(PACK), "Pack cdcdcdcdcdcd"), (frame(DATA, b"x", 5), "data on channel 5")):
        with half_connected() as (source, _, writes):
            writes.write(sent)
            with pytest.raises(ProtocolError, match=f"{name}, which was not asked for"):
                source.receive(Sent)


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (frame(9), "a frame of the unknown kind 9"),
        (frame(BEAT, b"x"), "a heartbeat with 1 bytes"),
        (frame(MESSAGE, b"", 1), "a message on channel 1"),
        (frame(DATA, b"", 16), "data on channel 16"),
        (frame(DATA, b"12345").replace(b"5", b"4"), "data with a wrong checksum"),
        (frame(MESSAGE, b"\xc1"), "a message that cannot be decoded: .* invalid opcode"),
        (frame(MESSAGE, msgspec.msgpack.encode({"type": "Stolen"})), "a message that cannot be decoded: .*Stolen"),
        (frames._HEADER.pack(frames.MOST_PAYLOAD + 1, DATA, 0, 0), f"data with {frames.MOST_PAYLOAD + 1} bytes"),  # noqa: SLF001
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_frame_of_an_unknown_or_wrong_kind_ends_the_connection(sent: bytes, what: str) -> None:
    with half_connected() as (source, _, writes):
        writes.write(frame(BEAT) + sent)
        with pytest.raises(ProtocolError, match=f"destination sent {what}") as caught:
            source.receive(Hello)
        assert "same version" in caught.value.hint


def test_message_with_too_many_parts_ends_the_connection() -> None:
    with half_connected() as (source, _, writes):

        def send() -> None:
            part = frame(PART, bytes(frames.MOST_DATA))
            with pytest.raises(BrokenPipeError):
                repeat(lambda: writes.write(part))

        sending = in_thread(send)
        with pytest.raises(ProtocolError, match=f"a message of more than {messages.MOST_BYTES} bytes"):
            source.receive(Hello)
        source.close()
        sending.join()


def test_unreceived_messages_do_not_fill_memory() -> None:
    with half_connected() as (source, _, writes):
        writes.write(message_frame(Stored()) * 65)
        with pytest.raises(ProtocolError, match="Stored before earlier messages were answered"):
            repeat(lambda: source.send(Stored()))


def test_peer_with_another_protocol_version_is_refused() -> None:
    with half_connected() as (source, _, writes):
        later = {**msgspec.to_builtins(HELLO), "protocol": 3, "version": "9.1", "hostname": 5}
        writes.write(frame(MESSAGE, msgspec.msgpack.encode(later)))
        with pytest.raises(RemoteError) as caught:
            source.receive(Hello)
    assert caught.value.message == (
        "destination has crckpt 9.1, which speaks version 3 of the migration protocol; "
        "crckpt on this host speaks version 2"
    )
    assert caught.value.hint == "install the same version of crckpt on both hosts"


def test_text_that_the_other_host_prints_instead_of_messages_is_shown() -> None:
    with half_connected() as (source, _, writes):
        writes.write(b"Welcome to Debian!\n\nYou have mail.\n")
        writes.write(frame(BEAT) + message_frame(HELLO))
        writes.close()
        with pytest.raises(PrintedText, match=r"printed text before .* Welcome to Debian! You have mail\.\Z") as caught:
            source.receive(Hello)
    assert ".bashrc" in caught.value.hint


@pytest.mark.parametrize("text", [b"This account is currently not available.\n", b"Denied\n"])
def test_account_without_commands_is_reported(text: bytes) -> None:
    """The message does not suggest to change a startup file, because the account's shell reads none."""
    with half_connected() as (source, _, writes):
        writes.write(text)
        writes.close()
        with pytest.raises(PrintedText) as caught:
            source.receive(Hello)
    assert text.decode().strip() in caught.value.message
    assert "login shell; ForceCommand" in caught.value.hint


def test_text_that_the_other_host_prints_among_messages_is_shown() -> None:
    with half_connected() as (source, _, writes):
        writes.write(message_frame(HELLO) + b"You have new mail in /var/mail/root\n")
        writes.close()
        assert source.receive(Hello) == HELLO
        with pytest.raises(PrintedText, match=r"among crckpt's messages: You have new mail in /var/mail/root\Z"):
            source.receive(Stored)


def test_end_of_the_other_side_is_noticed() -> None:
    with half_connected() as (source, _, writes):
        writes.write(message_frame(HELLO) + frame(MESSAGE, b"cut off")[:-3])
        writes.close()
        assert source.receive(Hello) == HELLO
        with pytest.raises(ConnectionLost, match="the connection to destination has ended"):
            source.receive(Stored)
        with pytest.raises(ConnectionLost):
            source.send(Stored())


def test_peer_that_closed_its_reading_end_is_noticed() -> None:
    with half_connected() as (source, reads, _):
        reads.close()
        with pytest.raises(ConnectionLost, match="broke: Broken pipe"):
            source.receive(Hello)


def test_error_about_a_lost_connection_has_the_reason_from_the_launcher() -> None:
    (to_nobody, outgoing), (incoming, from_nobody) = os.pipe(), os.pipe()
    os.close(from_nobody)
    reason = RemoteError("ssh says: no route to host")
    with (
        Connection(incoming, outgoing, "there", explain_end=lambda: reason) as side,
        pytest.raises(RemoteError, match="no route to host"),
    ):
        side.receive(Hello)
    os.close(to_nobody)


def test_error_about_a_silent_peer_does_not_ask_the_launcher() -> None:
    def explain() -> CrckptError:
        raise AssertionError("ssh may be alive for hours")

    (reads, outgoing), (incoming, writes) = os.pipe(), os.pipe()
    os.write(writes, frame(BEAT))
    with (
        Connection(incoming, outgoing, "there", patience_s=0.2, explain_end=explain) as side,
        pytest.raises(ConnectionLost, match="nothing was received"),
    ):
        side.receive(Hello)
    os.close(reads)
    os.close(writes)


def test_silent_peer_is_noticed() -> None:
    words = r"nothing was received from destination for 0\.2 s"
    with half_connected(patience_s=0.2) as (source, _, writes):
        writes.write(frame(BEAT))
        with pytest.raises(ConnectionLost, match=words):
            source.receive(Hello)


def test_silent_peer_is_noticed_while_sending_is_blocked() -> None:
    words = "nothing was received"
    with half_connected(patience_s=0.5) as (source, _, writes):
        writes.write(frame(BEAT))
        with pytest.raises(ConnectionLost, match=words):
            send_forever(source)


def test_chattering_peer_does_not_prevent_an_abort() -> None:
    is_over = threading.Event()

    def chatter() -> None:
        with suppress(OSError):
            while not is_over.wait(0.001):
                writes.write(message_frame(Stored()))

    with half_connected() as (source, _, writes):
        thread = in_thread(chatter)
        with pytest.raises(ConnectionLost):
            source.abort("^C", 0.05)
        is_over.set()
        thread.join()


PEER = """
import sys
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Ended, Stored
side = Connection(0, 1, "source")
side.send(Stored())
side.receive(Ended)
"""


def test_stopped_or_killed_peer_is_noticed() -> None:
    for number, words, patience_s in ((signal.SIGSTOP, "nothing was received", 4), (signal.SIGKILL, "has ended", 60)):
        with subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            try:
                with Connection(
                    os.dup(peer.stdout.fileno()), os.dup(peer.stdin.fileno()), "peer", patience_s=patience_s
                ) as side:
                    side.receive(Stored)
                    peer.send_signal(number)
                    with pytest.raises(ConnectionLost, match=words):
                        side.receive(Ended)
            finally:
                peer.kill()
