"""Messages come out as they went in; what is no message of this protocol is refused."""

from __future__ import annotations

import errno

import msgspec
import pytest
from connections import HELLO
from msgspec.structs import replace

from crckpt.causes import cause
from crckpt.errors import HostCannot, PreflightRefused, RemoteError, RestoreFailed, StoreUnusable
from crckpt.host.process.typed_command import advise_sudo, note_command
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.messages import (
    Abort,
    Aborted,
    Answers,
    CheckRestore,
    Compare,
    Compared,
    Complete,
    Content,
    Ended,
    Failed,
    Files,
    Lacking,
    MoveMessage,
    MoveState,
    Offer,
    OtherProtocol,
    PackMessage,
    Prepare,
    Prepared,
    Questions,
    Read,
    RestoreOptions,
    Resume,
    Running,
    Sent,
    Stored,
    Tails,
    Verdict,
    decode,
    encode,
    make_failed,
)
from crckpt.model import CheckpointId, JobName, MoveId
from crckpt.ops.failures import to_crckpt_error

ID = CheckpointId("ab" * 32)
MOVE = MoveId("0123456789abcdef")
FINDING = cause("file-missing").finding(path="/srv/x", use="fd 3")
OPTIONS = RestoreOptions("keep", "rewind", "null", allow_weaker=True, lazy="source")
ADDRESSES = ("192.0.2.1/24@eth0", "fd00::1/64@br-lan.2")

EXAMPLES: tuple[MoveMessage, ...] = (
    HELLO,
    Questions(b"\x00?"),
    Answers(b"\xff!"),
    Files(b"\x80"),
    Tails(b"\x80"),
    Compare(b"\x90"),
    Compared((1, 2)),
    Offer(("cd" * 32, "ef" * 32)),
    Lacking(()),
    PackMessage(3, "cd" * 32, 1 << 40),
    Sent(),
    Stored(),
    CheckRestore(MOVE, ID, b"{}", OPTIONS),
    Verdict((FINDING,), ()),
    Prepare(MOVE, JobName("trainer"), ID, b"{}", replace(OPTIONS, addresses=ADDRESSES)),
    Prepared(4321),
    Ended(MOVE),
    Running(4321, 12.5, (FINDING,)),
    Read(7, "cd" * 32, 1 << 30, 4096),
    Content(7, 1 << 40, b"\x00page"),
    Complete(),
    Abort("the user interrupted it"),
    Aborted(),
    Failed(24, "refused", "do that", ("one", "two")),
    Resume(MOVE),
    MoveState(MOVE, "prepared", ID),
)


def test_every_message_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(MoveMessage.__subclasses__())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_of_a_move_round_trips(message: MoveMessage) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "wrong",
    [
        PackMessage(messages.MOST_CHANNELS, "cd" * 32, 1),
        PackMessage(1, "../../../etc/shadow", 1),
        PackMessage(1, "cd" * 32, -1),
        Offer(("CD" * 32,)),
        Ended(MoveId("0123456789abcdef\n")),
        Prepare(MOVE, JobName("-rf"), ID, b"", OPTIONS),
        Prepare(MOVE, JobName("job"), ID, b"", replace(OPTIONS, addresses=("192.0.2.1/24@eth0 up",))),
        MoveState(MOVE, "prepared; rm"),  # type: ignore[arg-type]
        Failed(256, "x"),
        Abort("x" * (64 << 10) + "x"),
        replace(HELLO, cpu_features=("x",) * 5000),
    ],
    ids=str,
)
def test_message_with_a_forbidden_value_is_refused(wrong: MoveMessage) -> None:
    with pytest.raises(ValueError, match=r"Expected|Invalid enum value"):
        decode(encode(wrong))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"\x90" * 100_000,
        b"\x91" * 100_000,
        b"\x81\xa4type\xa5Stolen",
        b"\x81\xa4type\xa6Stored!",
        # Of lists that declare 2^32 - 1 items, nothing is allocated.
        b"\x82\xa4type\xa5Offer\xa7digests\xdd\xff\xff\xff\xff",
        b"\x82\xa4type\xa6Stored\xa5other\xdd\xff\xff\xff\xff",
        b"\x82\xa4type\xa5Abort\xa3why\xa1\xff",
        b"\x82\xa4type\xa5Abort\xa3why\xdb\xff\xff\xff\xff",
    ],
    ids=lambda content: content[:20].hex(),
)
def test_invalid_message_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(content)


def test_unknown_keys_of_a_message_are_ignored() -> None:
    later = {**msgspec.to_builtins(Ended(MOVE)), "added": [1, {"two": 3}]}
    assert decode(msgspec.msgpack.encode(later)) == Ended(MOVE)


@pytest.mark.parametrize("change", [{}, {"uptime_s": "long"}, {"hostname": None}])
def test_another_protocol_version_is_recognized_in_any_hello(change: dict[str, object]) -> None:
    later = {**msgspec.to_builtins(HELLO), "protocol": messages.PROTOCOL + 1, "version": "0.9", **change}
    with pytest.raises(OtherProtocol) as caught:
        decode(msgspec.msgpack.encode(later))
    assert caught.value.args == (messages.PROTOCOL + 1, "0.9")


def test_damaged_hello_is_not_another_protocol() -> None:
    with pytest.raises(ValueError, match="hostname"):
        decode(msgspec.msgpack.encode({**msgspec.to_builtins(HELLO), "hostname": 5}))


def test_text_that_is_not_unicode_can_be_sent() -> None:
    received = decode(encode(Verdict((cause("file-missing").finding(path="/tmp/\udcff", use="fd 3"),), ())))
    assert isinstance(received, Verdict)
    assert received.blockers[0].what == "/tmp/? is missing (fd 3)"
    assert decode(encode(Prepare(MOVE, JobName("job"), ID, b"\xff\x00", OPTIONS))) == Prepare(
        MOVE, JobName("job"), ID, b"\xff\x00", OPTIONS
    )


def test_error_from_the_other_host_keeps_message_hint_and_causes() -> None:
    refused = PreflightRefused("it cannot be restored", hint="remove it", causes=("PID 5 is in use",))
    error = make_failed(refused).to_error("root@there")
    assert isinstance(error, PreflightRefused)
    assert error.message == "root@there: it cannot be restored"
    assert error.hint == "on root@there: remove it"
    assert error.causes == ("PID 5 is in use",)


def test_only_a_refusal_keeps_its_exit_code() -> None:
    """Every other failure counts as one of the other host, whatever its exit code is there."""
    for failure in (RestoreFailed("it was not restored"), HostCannot("there is no CRIU"), StoreUnusable("it is full")):
        error = make_failed(failure).to_error("there")
        assert isinstance(error, RemoteError)
        assert error.from_peer
        assert error.message == f"there: {failure.message}"


def test_hint_from_the_other_host_names_the_option_to_type_here() -> None:
    note_command((), is_remote=True)
    try:
        full = to_crckpt_error(OSError(errno.ENOSPC, "full"), RestoreFailed, "the restore")
        sudo = StoreUnusable("root alone can read it", hint=advise_sudo())
    finally:
        note_command((), is_remote=False)
    hint = "free space there (crckpt rm, crckpt gc), or use a store on a larger disk: --remote-store DIR"
    assert make_failed(full).to_error("there").hint == hint
    assert (
        make_failed(sudo).to_error("there").hint == "log in as root there, or use sudo: --remote-crckpt 'sudo crckpt'"
    )


def test_system_error_from_the_other_host_has_a_message() -> None:
    failed = make_failed(OSError(28, "No space left on device", "/var/lib/crckpt"))
    assert failed == Failed(30, "No space left on device (/var/lib/crckpt)")


def test_endless_error_message_from_the_other_host_is_cut() -> None:
    failed = make_failed(PreflightRefused("x" * (1 << 20), causes=("y" * (1 << 20),) * 20_000))
    assert decode(encode(failed)) == failed
    assert len(encode(failed)) < messages.MOST_BYTES
