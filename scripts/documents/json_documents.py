"""The JSON documents of all commands, as types: the reference shows their schemas, and tests decode real output.

A document's nested values are the result types of `crckpt.ops`. A key is in every document of its command unless its
description says when.
"""

from __future__ import annotations

import inspect
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from crckpt.cli.config import Setting
from crckpt.criu.explain import FailureLocation
from crckpt.host.probes.trial import Fact
from crckpt.host.usage import ProcessUsage
from crckpt.migrate.drain import Outcome
from crckpt.migrate.request import RoundSummary
from crckpt.model import CheckpointId, DumpOptions, Host, JobName, Statistics
from crckpt.ops.doctor import Fix, UsingProcess
from crckpt.ops.dump.forecast import Prediction
from crckpt.ops.dump.result import LineageSummary, PreCopyResult, RoundResult
from crckpt.ops.export import ExportResult
from crckpt.ops.inspect.core import CoreFile
from crckpt.ops.inspect.descriptors import FileSection, SocketSection
from crckpt.ops.inspect.diff import PageChanges, ProcessChange, UnmatchedProcess
from crckpt.ops.inspect.sections import Environment, MapSection, ProcessSection
from crckpt.ops.inspect.show import FileDetail, ProcessDetail
from crckpt.ops.inspect.strings import Match
from crckpt.ops.report import Report
from crckpt.ops.restore.rehearse import EndedProcess, ProbeResult
from crckpt.ops.tag import TagResult
from crckpt.preflight.dump.checks import OptionReason
from crckpt.store import Damage, UnreadableCheckpoint, Unrepaired
from crckpt.store.move_states import Side, State
from crckpt.store.moves import UnreadableMove

Note: TypeAlias = Annotated[tuple[str, ...], Meta(description="Sentences for people.")]
CriuFile: TypeAlias = Annotated[Path, Meta(description="The CRIU that was used.")]
PassedOver: TypeAlias = Annotated[
    tuple[str, ...], Meta(description="Sentences on each CRIU that you named and that does not work.")
]


UtcSeconds: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"\A\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z\Z",
        description="`created` in whole seconds, UTC, as `fromdate` of jq reads it.",
    ),
]


class CheckpointDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint."""

    id: Annotated[CheckpointId, Meta(description="The SHA-256 of its manifest.")]
    job: JobName
    created: datetime
    created_utc: UtcSeconds
    in_future: Annotated[bool, Meta(description="Whether `created` is later than now: a clock was wrong.")]
    parent: Annotated[CheckpointId | None, Meta(description="The checkpoint of this job before it.")]
    stopped: Annotated[bool, Meta(description="Whether `--stop` ended the tree.")]
    note: str | None
    processes: int
    statistics: Statistics


class DumpDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt dump`."""

    job: JobName
    pid: Annotated[int, Meta(description="The root of the tree.")]
    dry_run: bool
    committing: Annotated[bool, Meta(description="With `--async`: the checkpoint is still being stored.")]
    stopped: Annotated[bool, Meta(description="Whether `--stop` ended the tree.")]
    rehearsed: Annotated[
        bool, Meta(description="Whether `--rehearse` restored the checkpoint before the tree was ended.")
    ]
    root_ended: Annotated[bool, Meta(description="The tree was to keep running, and its root has ended since.")]
    criu: CriuFile
    criu_passed_over: PassedOver
    command: Annotated[tuple[str, ...], Meta(description="CRIU's command line.")]
    reasons: Annotated[tuple[OptionReason, ...], Meta(description="Why CRIU got its options.")]
    warnings: Note
    unreaped: Annotated[
        tuple[int, ...],
        Meta(description="PIDs of the ended tree that its parent still keeps; a restore waits for them."),
    ]
    tracked: Annotated[
        LineageSummary | None,
        Meta(description="What a dump counts from, or why it is full; null if the tree was never tracked."),
    ]
    copying: Annotated[PreCopyResult | None, Meta(description="The rounds of `--pre-copy`.")]
    checkpoint: Annotated[
        CheckpointDocument | None, Meta(description="null after a dry run, and while it is `committing`.")
    ]


class TrackedRound(Struct, frozen=True, forbid_unknown_fields=True):
    """What a round counts from: `LineageSummary` without its counts of pages."""

    tracker: str
    why: str
    base: CheckpointId | None
    rounds: int
    why_full: str
    whole: tuple[str, ...]


class PreDumpDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt pre-dump`."""

    job: JobName
    pid: int
    criu: CriuFile
    criu_passed_over: PassedOver
    tracked: TrackedRound
    copied: RoundResult


class FileDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that `--send-files` sends."""

    path: str
    bytes: int


class MigrateDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt migrate`, or of `--check`; if the program was not moved, there is an error."""

    job: JobName
    host: Annotated[str, Meta(description="The other host, as you typed it.")]
    check: Annotated[bool, Meta(description="Whether `--check` was given: nothing was moved.")]
    runs_on: Annotated[Side, Meta(description="Where the program runs: `source` is this host.")]
    move: Annotated[str | None, Meta(description="The id of the move, for `--resume`; null after a check.")]
    pid: Annotated[int | None, Meta(description="The root on the other host; null after a check, or if unknown.")]
    checkpoint: Annotated[CheckpointId | None, Meta(description="In both stores; null after a check.")]
    rounds: Annotated[tuple[RoundSummary, ...], Meta(description="Copies that were made while the program ran.")]
    why_stopped: Annotated[str, Meta(description="Why there were no more rounds.")]
    sent_bytes: Annotated[int, Meta(description="All that was sent to the other host.")]
    raw_bytes: Annotated[int, Meta(description="The size of CRIU's images.")]
    downtime_ms: Annotated[
        float | None,
        Meta(
            description="From CRIU's freeze here until the program ran there; null after a check, or if the connection "
            "was lost."
        ),
    ]
    seconds: Annotated[float, Meta(description="The whole move.")]
    over_budget: Annotated[bool, Meta(description="Whether the downtime was longer than `--max-downtime`.")]
    memory_bytes: Annotated[int, Meta(description="With `--check`: memory to send, before compression.")]
    to_send: Annotated[tuple[FileDocument, ...], Meta(description="With `--check --send-files`: files to send.")]
    warnings: Note
    terminal: Annotated[MovedTerminal | None, Meta(description="With `--tty new`, if it had a terminal.")]


class MovedTerminal(Struct, frozen=True, forbid_unknown_fields=True):
    """The new terminal of a moved tree."""

    log: Annotated[str, Meta(description="The file with what the program writes to it, on the host that runs it.")]


class MoveDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The last move of a job, as the store of this host records it."""

    id: str
    job: JobName
    side: Annotated[Side, Meta(description="Which side of the move this host is.")]
    peer: Annotated[str, Meta(description="The other side: as the user typed it, or as it names itself.")]
    state: State
    is_over: Annotated[bool, Meta(description="Whether nothing is left to do on this side.")]
    runs_on: Annotated[
        Side | None, Meta(description="Which side has the program; null if neither runs it, or this side cannot know.")
    ]
    crckpt_pid: Annotated[int | None, Meta(description="The PID of the crckpt on this host that is moving it.")]
    next_on: Annotated[Side | None, Meta(description="The side on which `next_command` is to be typed.")]
    next_command: Annotated[str, Meta(description="What finishes the move; empty if there is nothing to do.")]
    checkpoint: CheckpointId | None
    began: datetime
    changed: datetime
    why: Annotated[str, Meta(description="Why the move was aborted, or empty.")]


class MovesDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt migrate --list`."""

    moves: Annotated[tuple[MoveDocument, ...], Meta(description="Oldest first.")]
    unreadable: Annotated[tuple[UnreadableMove, ...], Meta(description="Their records cannot be read.")]


class ResumedDocument(MoveDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of `crckpt migrate --resume`."""

    pid: Annotated[int | None, Meta(description="The root on the host that runs it, if known.")]
    terminal: Annotated[MovedTerminal | None, Meta(description="If it was restored onto a new one now.")]


class DrainedJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A job of `crckpt migrate --all`."""

    job: JobName
    pid: Annotated[int | None, Meta(description="The root on this host; null if that is unknown.")]
    memory_bytes: Annotated[int, Meta(description="Its memory that is in no file.")]
    outcome: Annotated[
        Outcome,
        Meta(
            description="`moved`; with `--check` `movable`; `stayed` here; `in-doubt`: it may run nowhere; `ended` by "
            "itself; `included` in the tree of another job; `unknown`: its newest checkpoint cannot be read."
        ),
    ]
    why: Annotated[str, Meta(description="The reason, unless it is moved or movable.")]
    hint: Annotated[str, Meta(description="What to type.")]
    causes: Annotated[tuple[str, ...], Meta(description="All reasons, if there are several.")]
    result: Annotated[MigrateDocument | None, Meta(description="The result of its move or check.")]


class DrainDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt migrate --all`."""

    host: Annotated[str, Meta(description="The other host, as you typed it.")]
    check: Annotated[bool, Meta(description="Whether `--check` was given: nothing was moved.")]
    interrupted: Annotated[bool, Meta(description="Whether ^C or SIGTERM stopped it.")]
    jobs: Annotated[tuple[DrainedJob, ...], Meta(description="In the order in which they were done.")]


class SkippedCheckpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """A newer checkpoint that `--or-older` skipped."""

    id: str
    reason: str


class NewTerminal(Struct, frozen=True, forbid_unknown_fields=True):
    """The new terminal of a restored tree."""

    log: Annotated[str, Meta(description="The file with what the program writes to it.")]
    holder: Annotated[int, Meta(description="The PID of the process that holds it.")]


class RestoreDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt restore`."""

    checkpoint: CheckpointDocument
    dry_run: bool
    pid: Annotated[int | None, Meta(description="The root, as the host sees it; null after a dry run.")]
    restore_ms: float
    criu: CriuFile
    criu_passed_over: PassedOver
    command: Annotated[tuple[str, ...], Meta(description="CRIU's command line.")]
    warnings: Note
    passed_over: Annotated[
        tuple[SkippedCheckpoint, ...], Meta(description="Newer checkpoints that `--or-older` skipped.")
    ]
    program_status: Annotated[
        int | None,
        Meta(description="In the foreground: the exit status of the program, or 128 plus its signal."),
    ]
    terminal: Annotated[
        NewTerminal | None, Meta(description="With `--tty new`, if the tree was started from a terminal.")
    ]


class TerminalDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A restored program with a new terminal."""

    pid: Annotated[int, Meta(description="The root of the tree.")]
    comm: str
    job: str
    checkpoint: Annotated[str, Meta(description="The id of the checkpoint that it was restored from.")]
    log: Annotated[str, Meta(description="The file with what it writes to its terminal.")]
    holder: Annotated[int, Meta(description="The PID of the process that holds the terminal.")]
    attached: Annotated[int | None, Meta(description="The PID of the crckpt that is attached.")]


class AttachDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt attach --list`."""

    terminals: tuple[TerminalDocument, ...]


class NotIsolated(Struct, frozen=True, forbid_unknown_fields=True):
    """What a rehearsal cannot isolate."""

    devices: bool
    sockets: Annotated[tuple[str, ...], Meta(description="Paths of the host's sockets that the tree could reach.")]


class RehearseDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt rehearse` if the tree started; otherwise there is an error."""

    checkpoint: CheckpointDocument
    passed: bool
    failures: Annotated[tuple[str, ...], Meta(description="Why it failed, in words.")]
    came_up: bool
    criu: CriuFile
    criu_passed_over: PassedOver
    restore_ms: float
    ran_s: float
    ended: Annotated[tuple[EndedProcess, ...], Meta(description="Processes that ended before the rehearsal did.")]
    probe: ProbeResult | None
    memory_limit: Annotated[int | None, Meta(description="In bytes; null if this host gives no limit.")]
    closed_connections: int
    warnings: Note
    unwritable: Annotated[tuple[str, ...], Meta(description="Mount points that are read-only in a rehearsal only.")]
    not_isolated: NotIsolated


class TrackerDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A keeper, as it describes itself: the process that tracks a tree."""

    pid: Annotated[int, Meta(description="The keeper.")]
    root: Annotated[int, Meta(description="The root of the tree.")]
    comm: str
    tracker: Annotated[str, Meta(description="`soft-dirty` or `uffd-wp`.")]
    why: str
    criu: str
    environment: Annotated[dict[str, str], Meta(description="What CRIU gets in addition for a dump that tracks.")]
    base: Annotated[str, Meta(description="What the next dump counts from; empty: it is full.")]
    why_full: str
    dumping: Annotated[int, Meta(description="The PID of the crckpt that dumps the tree now, or 0.")]
    identity: str
    usage: ProcessUsage | None


class ListedProcessDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A process of crckpt or CRIU."""

    pid: int
    kind: Annotated[str, Meta(description="`crckpt` (a command), `criu`, or the kind of a helper, as `tracker`.")]
    tree: Annotated[int | None, Meta(description="The root of the tree that a helper is for.")]
    program: Annotated[str, Meta(description="The name of the tree's program; of a command its command line.")]
    user: str
    started: datetime
    cpu_s: float
    memory_bytes: int
    ends: Annotated[str, Meta(description="What ends it.")]


class ListedLockDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A lock, or what a killed helper of a living tree has left."""

    name: Annotated[str, Meta(description="The locked file, or the table of nft(8).")]
    pid: Annotated[int | None, Meta(description="The process that holds it; null if none does.")]
    ends: Annotated[str, Meta(description="What ends it.")]


class PsDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt ps`."""

    processes: tuple[ListedProcessDocument, ...]
    locks: tuple[ListedLockDocument, ...]
    trackers: tuple[TrackerDocument, ...]
    ended: Annotated[bool, Meta(description="With `--end`: these trackers were ended.")]
    unanswered: Annotated[tuple[str, ...], Meta(description="For each keeper that does not answer, what to do.")]


class ListedDocument(CheckpointDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A checkpoint with its tags."""

    tags: tuple[str, ...]
    move: Annotated[
        MoveDocument | None,
        Meta(description="The move because of which it may not be restored now; null for most checkpoints."),
    ]


class PendingDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint that is not durable yet, or was lost."""

    job: JobName
    created: datetime
    created_utc: UtcSeconds
    run_id: str | None
    pid: Annotated[int, Meta(description="The process that stores it.")]
    lost: Annotated[str | None, Meta(description="Why there is no checkpoint.")]
    host: Annotated[str, Meta(description="Of the process, if it may run on another host; else empty.")]
    state: Literal["lost", "committing"]


class MarkedDocument(ListedDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A checkpoint in a list."""

    damaged: Annotated[bool, Meta(description="Whether the last `crckpt verify` of it found damage.")]


class ListDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt list`."""

    checkpoints: Annotated[tuple[MarkedDocument, ...], Meta(description="Oldest first.")]
    pending: tuple[PendingDocument, ...]
    unreadable: Annotated[tuple[UnreadableCheckpoint, ...], Meta(description="Their manifests cannot be read.")]


class ShowDocument(ListedDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of `crckpt show`."""

    options: DumpOptions
    host: Host
    tree: tuple[ProcessDetail, ...]
    files: tuple[FileDetail, ...]
    sockets: tuple[str, ...]


class SectionsDocument(CheckpointDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of `crckpt show` with options for sections: it has those sections."""

    ps: tuple[ProcessSection, ...] | UnsetType = UNSET
    files: tuple[FileSection, ...] | UnsetType = UNSET
    sockets: tuple[SocketSection, ...] | UnsetType = UNSET
    maps: tuple[MapSection, ...] | UnsetType = UNSET
    env: tuple[Environment, ...] | UnsetType = UNSET
    strings: tuple[Match, ...] | UnsetType = UNSET


class DiffDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt diff`."""

    first: CheckpointDocument
    second: CheckpointDocument
    come: Annotated[tuple[UnmatchedProcess, ...], Meta(description="Processes that only the second has.")]
    gone: Annotated[tuple[UnmatchedProcess, ...], Meta(description="Processes that only the first has.")]
    changed: tuple[ProcessChange, ...]
    pages: PageChanges


class VerifyDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt verify`."""

    checkpoints: Annotated[tuple[CheckpointId, ...], Meta(description="What was verified.")]
    packs: int
    bytes: Annotated[int, Meta(description="The bytes of packs that were read.")]
    damages: tuple[Damage, ...]
    intact: bool
    mended: Annotated[tuple[Damage, ...] | UnsetType, Meta(description="With `--repair`: repaired damage.")] = UNSET
    unmended: Annotated[
        tuple[Unrepaired, ...] | UnsetType, Meta(description="With `--repair`: what could not be repaired, and why.")
    ] = UNSET
    restorable: Annotated[tuple[CheckpointId, ...] | UnsetType, Meta(description="With `--repair`.")] = UNSET
    lost: Annotated[tuple[CheckpointId, ...] | UnsetType, Meta(description="With `--repair`.")] = UNSET


class RemoveDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt rm`."""

    removed: Annotated[tuple[CheckpointId, ...], Meta(description="With `--dry-run`: what would be removed.")]
    lifted_locks: Annotated[tuple[str, ...], Meta(description="Names of nftables tables of network locks.")]
    dry_run: bool
    bytes: Annotated[
        int | None,
        Meta(description="With `--dry-run`: what that would free, once `crckpt gc` has run; null if that is unknown."),
    ]


class GcDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt gc`."""

    packs: Annotated[tuple[str, ...], Meta(description="Packs that were removed, by digest.")]
    leftovers: Annotated[tuple[str, ...], Meta(description="What else was removed, by path in the store.")]
    bytes: int
    dry_run: bool


class DoctorDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt doctor`."""

    able: Annotated[bool, Meta(description="Whether anything can be checkpointed on this host.")]
    facts: tuple[Fact, ...]
    fixes: tuple[Fix, ...]


class Finding(Struct, frozen=True):
    """A cause that was met: `what` is the message, `remedy` what to do.

    It is not `sure` if CRIU writes the same for other causes; the message says so too.
    """

    key: str
    what: str
    remedy: str
    sure: bool


class ExaminedDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt doctor TARGET`."""

    pid: int
    able: Annotated[bool, Meta(description="Whether the tree can be checkpointed.")]
    processes: tuple[UsingProcess, ...]
    criu: CriuFile
    criu_passed_over: PassedOver
    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    reasons: Annotated[tuple[OptionReason, ...], Meta(description="Why CRIU would get its options.")]
    prediction: Prediction | None
    prediction_assumes: str | None
    prediction_missing: Annotated[str | None, Meta(description="Why there is no prediction.")]


class ConfigDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt config`."""

    file: Annotated[Path, Meta(description="The configuration file that is read.")]
    file_exists: bool
    settings: Annotated[tuple[Setting, ...], Meta(description="Each key of the file, with the value in force.")]


class RejectedCriu(Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate that was tried before, and why it was rejected."""

    candidate: str
    why: str


class InstallCriuDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt install-criu`."""

    path: Annotated[Path, Meta(description="The CRIU that works.")]
    version: str
    candidate: Annotated[str, Meta(description="`path`, `prefix`, `sid`, `testing`, `stable` or `build`.")]
    rejected: tuple[RejectedCriu, ...]
    needs: Annotated[str, Meta(description="A remark, or empty.")]


class ExplainDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `crckpt explain`."""

    known: bool
    cause: Annotated[str | None, Meta(description="The anchor in [the causes](causes.md).")]
    what: str | None
    remedy: str | None
    sure: Annotated[bool | None, Meta(description="false: CRIU writes the same in other cases.")]
    place: FailureLocation | None
    line: Annotated[str | None, Meta(description="CRIU's line that names the cause.")]
    lines: Annotated[tuple[str, ...], Meta(description="CRIU's lines that matter.")]


class Error(Struct, frozen=True, forbid_unknown_fields=True):
    """A failure."""

    code: Annotated[int, Meta(description="The exit code.")]
    message: Annotated[str, Meta(description="What happened, and why.")]
    hint: Annotated[str, Meta(description="What to type next; may be empty.")]
    causes: Annotated[tuple[str, ...], Meta(description="The findings behind the message.")]


class ErrorDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole document of a failure, of every command. Bad news that was asked for comes as a result, too."""

    schema: Literal[1]
    command: str
    status: Literal["error"]
    error: Error
    result: Annotated[
        Any, Meta(description="Of `verify`, `rehearse`, `doctor`, `explain` and `migrate --all`: what was found.")
    ] = UNSET


DOCUMENTS: Final[dict[str, tuple[type[Struct], ...]]] = {
    "dump": (DumpDocument,),
    "restore": (RestoreDocument,),
    "migrate": (MigrateDocument, MovesDocument, ResumedDocument, DrainDocument),
    "attach": (AttachDocument,),
    "rehearse": (RehearseDocument,),
    "pre-dump": (PreDumpDocument,),
    "ps": (PsDocument,),
    "list": (ListDocument,),
    "show": (ShowDocument, SectionsDocument),
    "diff": (DiffDocument,),
    "core": (CoreFile,),
    "verify": (VerifyDocument,),
    "tag": (TagResult,),
    "rm": (RemoveDocument,),
    "gc": (GcDocument,),
    "export": (ExportResult,),
    "import": (CheckpointDocument,),
    "doctor": (DoctorDocument, ExaminedDocument),
    "config": (ConfigDocument,),
    "install-criu": (InstallCriuDocument,),
    "explain": (ExplainDocument,),
    "report": (Report,),
}
"""The types of each command's result. Options choose among several: of `doctor`, `show` and `migrate`."""


def schema(document: type[Struct]) -> dict[str, Any]:
    """Make the JSON schema of a document."""
    made = msgspec.json.schema(document, schema_hook=lambda _: {"type": "string"})  # a path
    for definition in made["$defs"].values():
        _require_defaults(definition)
        if "description" in definition:  # msgspec before 0.23 leaves the indentation of the docstring
            definition["description"] = inspect.cleandoc(definition["description"])
    return made


def _require_defaults(definition: dict[str, Any]) -> None:
    """A value that has a default in Python is in every document."""
    required = definition.get("required", [])
    properties = definition.get("properties", {})
    definition["required"] = [name for name, value in properties.items() if name in required or "default" in value]
    for value in properties.values():
        value.pop("default", None)
        if "pattern" in value:  # JSON schemas use the regular expressions of JavaScript
            value["pattern"] = re.sub(r"^\\A(.*)\\Z$", r"^\1$", value["pattern"])


def check(text: str) -> None:
    """Check that what a command printed with `--json` is of its type. Raises ValidationError."""
    plain = json.loads(text)  # it reads lone surrogates, which msgspec refuses
    if plain["status"] == "error":
        _convert(plain, ErrorDocument)
        if "result" not in plain:
            return
    errors = []
    for document in DOCUMENTS[plain["command"]]:
        try:
            _convert(plain["result"], document)
        except msgspec.ValidationError as error:
            errors.append(error)
        else:
            assert (plain.keys() - {"error"}, plain["schema"]) == ({"schema", "command", "status", "result"}, 1)
            return
    raise errors[0]


def _convert(value: object, document: type[Struct]) -> None:
    msgspec.convert(value, document, dec_hook=lambda kind, text: kind(text))
