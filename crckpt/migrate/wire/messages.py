"""The messages of a migration: msgspec structs in MessagePack, with their limits in their types. Pure.

The source says Hello, then the destination. After that the source asks and the destination answers:

    Questions                           Answers
    Files                               Lacking
    Pack, its data, Pack, ...; Sent     Stored
    Tails                               Lacking
    Compare                             Compared
    Pack, its data, Pack, ...; Sent     Stored
    Offer                               Lacking
    Pack, its data, Pack, ...; Sent     Stored
    CheckRestore                        Verdict
    Prepare                             Prepared
    Ended                               Running
    Read                                Content (asked by the destination, at any time)
    Abort                               Aborted
    Resume                              MoveState

Instead of any answer Failed may come, and it may come while packs are sent. Keys that a release does not know are
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from crckpt.causes import Finding
from crckpt.errors import CommandFailure, IntegrityError, PreflightRefused, RemoteError, error_text
from crckpt.host.process.typed_command import SourceHint
from crckpt.model import CheckpointId, Count, JobName, Milliseconds, MoveId, Pid
from crckpt.store.move_states import State

T = TypeVar("T")

PROTOCOL: Final = 2
"""The version of the frames and messages: two crckpts with different ones refuse each other."""

MOST_BYTES: Final = 48 << 20
"""The size of the largest message: one with a manifest of 32 MiB, or with the digests of all its packs."""

MOST_READ: Final = 8 << 20
"""Bytes of one Read."""

MOST_CHANNELS: Final = 16
"""The number of packs that may be under way at once."""

Text: TypeAlias = Annotated[str, Meta(max_length=64 << 10)]
"""Text for people, which may contain anything: what prints it must escape it."""

Word: TypeAlias = Annotated[str, Meta(max_length=1024)]

Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""The name of a pack."""

Digests: TypeAlias = Annotated[tuple[Digest, ...], Meta(max_length=1 << 19)]

Manifest: TypeAlias = Annotated[bytes, Meta(max_length=32 << 20)]
"""A manifest as it lies in the store."""

Packet: TypeAlias = Annotated[bytes, Meta(max_length=40 + 0xFFFF)]
"""An IP packet."""

Address: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9A-Fa-f:.]{2,45}/[0-9]{1,3}@[^\x00-\x20/]{1,31}\Z")]
"""An address to move: ADDR/LEN@DEV, with the destination's name of the device."""

MOST_ADDRESSES: Final = 64
"""So many addresses move with a tree."""

Addresses: TypeAlias = Annotated[tuple[Address, ...], Meta(max_length=MOST_ADDRESSES)]

Findings: TypeAlias = Annotated[tuple[Finding, ...], Meta(max_length=10_000)]


class MoveMessage(Struct, frozen=True, tag=True):
    """One message."""


class Hello(MoveMessage, frozen=True):
    """A side and its host, as it describes itself.

    - `version`: of crckpt; `criu_version`: empty if there is no CRIU
    - `uptime_s`, `time_s`: seconds since the boot, and since 1970
    - `highest_sequence`: the highest number of a checkpoint in its store
    - `free_bytes`: bytes that trees may take of its memory, and of its store
    - `store`: identifies its store and its machine
    - `is_check`: of the source: nothing is to be changed
    """

    protocol: Count
    version: Word
    hostname: Word
    boot_id: Word
    uptime_s: float
    time_s: float
    arch: Word
    kernel: Word
    cpu_features: Annotated[tuple[Word, ...], Meta(max_length=4096)]
    criu_version: Word
    highest_sequence: Count
    free_bytes: Count = 0
    store: Word = ""
    is_check: bool = False


class Questions(MoveMessage, frozen=True):
    """What the gate asks the destination. The gate defines the content."""

    content: bytes


class Answers(MoveMessage, frozen=True):
    """The destination's answers to the gate."""

    content: bytes


class Compare(MoveMessage, frozen=True):
    """Files that have changed since the gate, as they are now; answered by Compared. The gate defines the content."""

    content: bytes


class Compared(MoveMessage, frozen=True):
    """The ids of those that are the same there: on storage that both hosts have mounted."""

    same: Annotated[tuple[Count, ...], Meta(max_length=1 << 20)]


class Files(MoveMessage, frozen=True):
    """Files that the destination lacks. It asks for their digests (Lacking), then they are sent as packs are."""

    content: bytes


class Tails(MoveMessage, frozen=True):
    """What logs of the tree have gained; answered and sent as `Files` are. The gate defines the content."""

    content: bytes


class Offer(MoveMessage, frozen=True):
    """Packs that a checkpoint needs."""

    digests: Digests


class Lacking(MoveMessage, frozen=True):
    """Packs of the offer that the destination's store lacks, in the order of the offer."""

    digests: Digests


class PackMessage(MoveMessage, frozen=True, tag="Pack"):
    """A pack of `size` bytes, which come as data on a channel; the next pack of the channel follows after these."""

    channel: Annotated[int, Meta(ge=0, lt=MOST_CHANNELS)]
    digest: Digest
    size: Count


class Sent(MoveMessage, frozen=True):
    """The last byte of the last pack was sent. Not sent if nothing is lacking."""


class Stored(MoveMessage, frozen=True):
    """All packs are in the destination's store: durable, each frame verified."""


class RestoreOptions(Struct, frozen=True):
    """The user's choices for the restore, as in `RestoreRequest`; None: as for the dump. `addresses` move along.

    `lazy`: the tree runs before its memory is filled from the destination's store (`local`), or before that has its
    pages (`source`).
    """

    tcp: Literal["keep", "close"] | None = None
    grown: Literal["refuse", "keep", "rewind"] = "refuse"
    tty: Literal["new", "null"] | None = None
    allow_weaker: bool = False
    preflight: bool = True
    addresses: Addresses = ()
    lazy: Literal["local", "source"] | None = None


class CheckRestore(MoveMessage, frozen=True):
    """Check whether this checkpoint can be restored; claim the addresses; unpack its memory. Its packs are stored."""

    move: MoveId
    checkpoint: CheckpointId
    manifest: Manifest
    options: RestoreOptions


class Verdict(MoveMessage, frozen=True):
    """What would prevent the restore, and what else the user should know."""

    blockers: Findings
    warnings: Findings


class Prepare(MoveMessage, frozen=True):
    """Store this checkpoint, build its tree, and hold the tree before it runs."""

    move: MoveId
    job: JobName
    checkpoint: CheckpointId
    manifest: Manifest
    options: RestoreOptions


class Prepared(MoveMessage, frozen=True):
    """The tree is built and held, its checkpoint durable; `pid` is the PID of its root."""

    pid: Pid


class Ended(MoveMessage, frozen=True):
    """The tree has ended at the source: let it run, and have its sockets get `packets` that came meanwhile."""

    move: MoveId
    packets: Annotated[tuple[Packet, ...], Meta(max_length=256)] = ()


class Running(MoveMessage, frozen=True):
    """The tree runs there, for `ran_for_ms` already. `terminal_log`: the file with the output of a new terminal."""

    pid: Pid
    restore_ms: Milliseconds
    warnings: Findings = ()
    terminal_log: Annotated[str, Meta(max_length=4096)] = ""
    ran_for_ms: Milliseconds = 0


class Read(MoveMessage, frozen=True):
    """Read `size` bytes of a pack from `offset` on, at any time after Hello: see `Content`."""

    number: Count
    digest: Digest
    offset: Count
    size: Annotated[int, Meta(ge=0, le=MOST_READ)]


class Content(MoveMessage, frozen=True):
    """The answer to the Read of that number: `pack_bytes` is the size of the whole pack. `why`: it cannot be read."""

    number: Count
    pack_bytes: Count
    content: Annotated[bytes, Meta(max_length=MOST_READ)]
    why: Text = ""


class Complete(MoveMessage, frozen=True):
    """The packs are stored, and the memory of the tree is filled: the source is no longer needed."""


class Abort(MoveMessage, frozen=True):
    """The tree keeps running at the source: remove what was received. After Ended this is no longer allowed."""

    why: Text


class Aborted(MoveMessage, frozen=True):
    """Nothing of the move is left at the destination but packs that `crckpt gc` removes."""


class Failed(MoveMessage, frozen=True):
    """An error of the side that sends it, as `CommandFailure`. `code` is the exit code that a command would have.

    `is_for_source`: the hint is followed where the move was typed.
    """

    code: Annotated[int, Meta(ge=0, le=255)]
    message: Text
    hint: Text = ""
    causes: Annotated[tuple[Text, ...], Meta(max_length=10_000)] = ()
    causes_said: Count = 0
    is_for_source: bool = False

    def to_error(self, side: str) -> RemoteError | PreflightRefused:
        """Make the error of this side from it; `side` names the other one."""
        said = f"{side}: {self.message}"
        hint = f"on {side}: {self.hint}" if self.hint and not self.is_for_source else self.hint
        # What is refused there has changed nothing, on either side.
        if self.code == PreflightRefused.exit_code:
            return PreflightRefused(said, hint=hint, causes=self.causes)
        error = RemoteError(said, hint=hint, causes=self.causes, causes_said=self.causes_said)
        error.from_peer = True
        return error


class Resume(MoveMessage, frozen=True):
    """What is recorded of this move?

    `aborted_job`: it is aborted at the source, and was sent to this store. Then a destination that knows nothing of it
    records that: a crckpt there that was stopped before it began must not build the tree later.
    """

    move: MoveId
    aborted_job: JobName | None = None


class MoveState(MoveMessage, frozen=True):
    """What is recorded of a move, if anything. `has_ended`: the tree ran there, and has surely ended since."""

    move: MoveId
    state: State | None
    checkpoint: CheckpointId | None = None
    has_ended: bool = False


_DECODER: Final[msgspec.msgpack.Decoder[MoveMessage]] = msgspec.msgpack.Decoder(
    reduce(or_, MoveMessage.__subclasses__())
)


class _AnyHello(Struct, tag="Hello"):
    protocol: int
    version: Word


_ANY_HELLO: Final = msgspec.msgpack.Decoder(_AnyHello)
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError, MemoryError)


class OtherProtocol(Exception):
    """The Hello of a crckpt that speaks another protocol; `args` are the versions of that, and of the crckpt."""


def encode(value: Struct | tuple[Struct, ...]) -> bytes:
    """Encode a message, or the content of one."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        # Text for people may quote a file name that is no UTF-8, and a program may have any bytes as its name.
        return msgspec.msgpack.encode(_as_unicode(msgspec.to_builtins(value, builtin_types=(bytes,))))


def decode(content: bytes | memoryview) -> MoveMessage:
    """Decode a message. Raises OtherProtocol for such a Hello, ValueError for what is no message of this protocol."""
    try:
        message = _DECODER.decode(content)
    except _UNREADABLE as error:
        with suppress(*_UNREADABLE):
            if (other := _ANY_HELLO.decode(content)).protocol != PROTOCOL:
                raise OtherProtocol(other.protocol, other.version) from error
        raise ValueError(str(error) or type(error).__name__) from error
    if isinstance(message, Hello) and message.protocol != PROTOCOL:
        raise OtherProtocol(message.protocol, message.version)
    return message


def decode_content(content: bytes, decoder: msgspec.msgpack.Decoder[T], what: str, most: int = MOST_BYTES) -> T:
    """Decode the content of a message of the other host, of which `what` comes. Raises IntegrityError."""
    if len(content) > most:
        raise IntegrityError(f"{what} of the other host: {len(content)} bytes; at most {most} are allowed")
    try:
        return decoder.decode(content)
    except _UNREADABLE as error:
        raise IntegrityError(f"{what} of the other host cannot be read: {error}") from error


def make_failed(error: CommandFailure | OSError) -> Failed:
    """Make the message for an error."""
    if isinstance(error, CommandFailure):
        return Failed(
            error.exit_code,
            cut_text(error.message),
            cut_text(error.hint),
            tuple(map(cut_text, error.causes[:1000])),
            error.causes_said,
            isinstance(error.hint, SourceHint),
        )
    return Failed(RemoteError.exit_code, cut_text(error_text(error)))


def cut_text(text: str) -> str:
    """Return text that fits in a message."""
    return text[: 16 << 10]


def _as_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {key: _as_unicode(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_as_unicode(item) for item in value]
    return value
