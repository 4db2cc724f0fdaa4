"""The attempt to restore one checkpoint, and its result: with --or-older a restore may make several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding
from crckpt.criu.command import Paths, restore_command
from crckpt.criu.find import Criu
from crckpt.criu.hold import AfterCommit
from crckpt.helper.terminal.client import TerminalHolder
from crckpt.host.process.job_control import Job
from crckpt.images.sockets import PacketSocket
from crckpt.images.tree import ImageTree
from crckpt.images.tty import TerminalFiles
from crckpt.model import CheckpointId
from crckpt.ops.context import Context, words_without_groups
from crckpt.ops.lazy.client import Filler
from crckpt.ops.restore.images import ImageEdits, plan_edits
from crckpt.ops.restore.last_calls import LastCalls
from crckpt.ops.restore.request import RestoreRequest
from crckpt.preflight.attribute_record import read_attribute_record
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.preflight.restore.descriptors import find_terminal_files
from crckpt.store import Checkpoint, Repository
from crckpt.store.read.details import read_details
from crckpt.tracking.preload.library import restore_words

if TYPE_CHECKING:
    from crckpt.store.read.frames import UnpackedFrames

HOLDERS: Final = "holders"
"""Its name in the directory of CRIU's run: the file by which CRIU's preload library knows whose rights it uses."""


class SkippedCheckpoint(Struct, frozen=True):
    """A newer checkpoint that could not be restored, and why; `is_named`: the reason names it itself."""

    id: CheckpointId
    reason: str
    is_named: bool = True

    def __str__(self) -> str:
        return self.reason if self.is_named else f"{self.id[:12]}: {self.reason}"


class RestoreResult(Struct, frozen=True):
    """The result of a restore. After a dry run `pid` is None.

    - `pid`: the root of the tree, as we see it; `inner_pid`: the PID that it has in its new PID namespace
    - `job`: the program to wait for, in the foreground
    - `holder`: of the new terminal of the tree, if it got one; then `job.child` is a child of the holder
    - `copiers`: PIDs of our processes that copy what the tree writes; they end after it
    - `skipped`: newer checkpoints that could not be restored
    """

    checkpoint: Checkpoint
    verdict: RestoreVerdict
    command: tuple[str, ...]
    criu: Criu
    pid: int | None = None
    inner_pid: int | None = None
    job: Job | None = None
    restore_ms: float = 0.0
    holder: TerminalHolder | None = None
    skipped: tuple[SkippedCheckpoint, ...] = ()
    copiers: tuple[int, ...] = ()


Announce = Callable[[RestoreResult], None]
"""Called with the result of a restore in the foreground, before the tree runs."""


BeforeRun = Callable[[int, int], AfterCommit]
"""Called with the PIDs of the root, as we see it, and of CRIU when the tree is complete: it runs if this returns."""


class RestoreAttempt(Struct, frozen=True):
    """One checkpoint to restore, as the user asked for it, by one CRIU.

    `has_new_terminal`: the tree gets a new terminal, whose holder is the parent of CRIU. `before_run` is None if the
    restore is none of a move. `unpacked` is memory that need not be read. With `filler` the tree runs before its memory
    is filled. `running`: what was found if the job's tree is already running.
    """

    request: RestoreRequest
    context: Context
    repository: Repository
    checkpoint: Checkpoint
    criu: Criu
    announce: Announce = lambda _result: None
    has_new_terminal: bool = False
    before_run: BeforeRun | None = None
    unpacked: UnpackedFrames | None = None
    filler: Filler | None = None
    running: tuple[Finding, ...] = ()

    @property
    def is_sibling(self) -> bool:
        """Whether CRIU makes the root a child of its parent: of us, or of the holder of the new terminal."""
        # In a new PID namespace CRIU has no parent.
        return self.has_new_terminal or not (self.request.detach or self.request.new_pid_namespace)

    @property
    def tcp(self) -> Literal["keep", "close"] | None:
        """The treatment of TCP connections: those that the dump has kept can also be restored closed."""
        return self.request.tcp or self.checkpoint.options.tcp

    @property
    def name(self) -> str:
        """The checkpoint, for commands: with --or-older, the ref may name a newer one."""
        return self.checkpoint.short_id if self.request.or_older else self.request.ref

    @property
    def values(self) -> dict[str, str]:
        """The values of its findings: `ref`, and `older`, which offers an older checkpoint."""
        older = f"; or restore an older checkpoint: crckpt restore {self.request.ref} --or-older"
        if len(self.repository.back_from(self.checkpoint)) == 1:
            older = f"; {self.checkpoint.job} has no older checkpoint"
        elif self.request.or_older:
            older = ""
        return {"ref": self.name, "older": older}

    def name_checkpoint(self, result: RestoreResult) -> RestoreResult:
        """Return its result with warnings whose remedies name the checkpoint."""
        warnings = tuple(warning.fill(ref=self.name) for warning in result.verdict.warnings)
        return replace(result, verdict=replace(result.verdict, warnings=warnings))

    def find_edits(self, tree: ImageTree) -> ImageEdits:
        """Find the changes to the images. A parent-death signal is removed if CRIU is the root's parent."""
        terminals = self.find_replaced_terminals(tree)
        devices = self.find_devices(tree)
        return plan_edits(tree, self.request.grown, keeps_signal=self.is_sibling, terminals=terminals, devices=devices)

    def find_devices(self, tree: ImageTree) -> dict[int, str] | None:
        """Find the names of the network devices of the dump if packet sockets need them, and the dump recorded them."""
        # A network of its own gets its devices back, with their numbers.
        if tree.is_apart("net") or not any(isinstance(file, PacketSocket) for file in tree.files):
            return None
        record = read_attribute_record(read_details(self.repository, self.checkpoint))
        return record.devices if record is not None else None

    def find_replaced_terminals(self, tree: ImageTree) -> TerminalFiles | None:
        """Find the terminals that other files replace, if the user wants that and the tree has such terminals."""
        if self.request.tty not in ("null", "file"):
            return None
        found = find_terminal_files(tree)
        return found if found.files else None

    def command(self, paths: Paths, inherit: tuple[str, ...], *, stream: bool) -> tuple[str, ...]:
        """The command that runs CRIU; `inherit` are values for its --inherit-fd."""
        # CRIU needs the other options of the dump again.
        options = replace(self.checkpoint.options, tcp=self.tcp)
        words = restore_command(self.criu.path, paths, options, sibling=self.is_sibling, inherit=inherit, stream=stream)
        files = paths.work / HOLDERS, LastCalls(paths.work).path
        return (*words_without_groups(), *restore_words(self.criu.path, *files), *words)
