"""The user's request for a dump. Light to load: CRIU is started before the other steps are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from crckpt.errors import UsageError


class PreCopy(Struct, frozen=True):
    """Copy in up to `max_rounds` rounds before the freeze, until its estimate is at most `max_freeze_ms`.

    `abort_over`: make no dump if the estimate is still longer after the last round.
    """

    max_rounds: int
    max_freeze_ms: float | None = None
    abort_over: bool = False


class DumpRequest(Struct, frozen=True):
    """The user's request. Without `preflight` only what CRIU would not find itself is checked.

    `force`: end the tree even if it holds what no test has shown to come back. `rehearse`: end it only after its
    checkpoint was restored in isolation. `other_program`: dump into the job even if its last checkpoint is of another
    program. `incremental` None: if the tree is tracked already, or with
    `pre_copy`. `copies`: store again some known pages so that old packs die. `searches`: find known
    pages by their content, too, not only at their place.
    """

    target: str
    job: str | None = None
    stop: bool = False
    tcp: Literal["keep", "close"] | None = None
    tag: str | None = None
    note: str | None = None
    dry_run: bool = False
    asynchronous: bool = False
    preflight: bool = True
    incremental: bool | None = None
    pre_copy: PreCopy | None = None
    skip_in_flight: bool = False
    force: bool = False
    rehearse: bool = False
    other_program: bool = False
    copies: bool = True
    searches: bool = True

    @property
    def wants_tracker(self) -> bool | None:
        """Whether to start a tracker. None: start none, but use one that runs."""
        return True if self.pre_copy is not None else self.incremental

    @property
    def allows_long_freeze(self) -> bool:
        """Whether to dump even if the tree is frozen for longer than estimated."""
        return self.pre_copy is None or not self.pre_copy.abort_over

    def check(self) -> None:
        """Raise UsageError if options contradict each other, or if the job is another PID."""
        # $(pgrep NAME) may find several.
        if self.target.isdecimal() and self.job and self.job.isdecimal() and Path("/proc", self.job).exists():
            raise UsageError(
                f"{self.job} is a PID, and would become the name of the job",
                hint=f"name one process; its descendants are included: crckpt dump {int(self.target)} JOB",
            )
        hint = "leave one of them out"
        if self.stop and self.asynchronous:
            raise UsageError("--stop and --async cannot be combined: --stop waits for the checkpoint", hint=hint)
        if self.rehearse and not self.stop:
            raise UsageError(
                "--rehearse needs --stop: a tree that keeps running can be rehearsed later",
                hint="leave --rehearse out, then: crckpt rehearse JOB",
            )
        if self.pre_copy is not None and self.incremental is False:
            raise UsageError("--pre-copy cannot be combined with --no-incremental", hint=hint)
