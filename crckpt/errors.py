"""All failures that a user can meet, and interruptions, each with its own exit code.

    CrckptError
    ├── UsageError              2   invalid command line or configuration
    ├── PartlyDone              3   not all was done; the output says what was left, and why
    ├── CauseUnknown            4   a log tells of a failure that crckpt does not know
    ├── StoreUnusable          10   not a store, wrong owner or mode, newer format, no space
    ├── StoreLocked            11   another process holds the store's lock
    ├── NoSuchCheckpoint       12   the ref names no checkpoint
    ├── IntegrityError         13   stored bytes do not match their digest, or images are damaged
    ├── TargetNotRunning       14   there is no such process, or it has ended
    ├── HostCannot             20   this host lacks something (CRIU, kernel, privileges)
    ├── DumpFailed             21   no checkpoint was made; the tree keeps running
    │   └── TreeStopped        22   no checkpoint was made; the tree is paused or gone
    ├── RestoreFailed          23   nothing was restored, nothing is left behind
    ├── PreflightRefused       24   would fail or lose something; nothing was changed
    ├── RehearsalFailed        25   the checkpoint cannot be restored, or the tree did not keep running
    ├── RemoteError            30   the other host failed or cannot be reached; nothing was moved
    └── MoveInDoubt            31   a migration is unfinished; the message says where the tree is and what finishes it
    Interrupted               130   ^C or SIGTERM; no Exception

A message says what happened and why. The hint says what to type next.
"""

from __future__ import annotations

from copy import copy
from typing import Final, Self

NOTHING_LEFT: Final = "nothing is left behind"
TREE_RUNS: Final = "the tree keeps running"
NOTHING_MADE: Final = "no checkpoint was made"
NOT_MADE: Final = f"{NOTHING_MADE}; {TREE_RUNS}"
KEEPS_RUNNING: Final = "the program keeps running here"
UNCHANGED: Final = f"nothing was changed, {TREE_RUNS}"
"""States after a failure."""


class CommandFailure(BaseException):
    """What ends a command: a message, a hint, and an exit code. Handle one of the two kinds by its name.

    The message is `what` happened and why, and the `state` of the program after that.
    """

    # Scripts rely on these numbers; the documents list them. 1 is a bug: what a user can meet has another.
    exit_code = 1

    def __init__(
        self, what: str, *, state: str = "", hint: str = "", causes: tuple[str, ...] = (), causes_said: int = 0
    ) -> None:
        """`causes`: the findings behind the message, one line each. The message itself says the first `causes_said`."""
        super().__init__(what)
        self.what = what
        self.state = state
        self.hint = hint
        self.causes = causes
        self.causes_said = causes_said

    @property
    def message(self) -> str:
        """The fact, and the state after it."""
        return f"{self.what}; {self.state}" if self.state else self.what

    def __str__(self) -> str:
        return self.message

    def reword(self, what: str | None = None, *, hint: str | None = None, state: str | None = None) -> Self:
        """Return the same failure with other words in one of its parts, or several."""
        other = copy(self)
        other.what = self.what if what is None else what
        other.hint = self.hint if hint is None else hint
        other.state = self.state if state is None else state
        return other


class CrckptError(CommandFailure, Exception):
    """A failure of what crckpt does."""


def error_text(error: Exception) -> str:
    """The words of an error for people: of a system error what happened, and the file; not the kernel's number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror


class UsageError(CrckptError):
    """The command line or the configuration is invalid."""

    exit_code = 2


class PartlyDone(CrckptError):
    """Not all was done (`migrate --all`); the output says what was left, and why."""

    exit_code = 3


class CauseUnknown(CrckptError):
    """The log tells of a failure that crckpt does not know (`explain`)."""

    exit_code = 4


class StoreUnusable(CrckptError):
    """The store cannot be used: it is no store, has the wrong owner, mode or format, or no space."""

    exit_code = 10


class StoreLocked(CrckptError):
    """Another process holds the store's lock; the message names it."""

    exit_code = 11

    def __init__(
        self, message: str, *, hint: str = "", causes: tuple[str, ...] = (), holder: int | None = None
    ) -> None:
        """`holder`: the PID of the process that restores a job, if it is known."""
        super().__init__(message, hint=hint, causes=causes, causes_said=len(causes))
        self.holder = holder


class NoSuchCheckpoint(CrckptError):
    """The ref names no checkpoint."""

    exit_code = 12


class IntegrityError(CrckptError):
    """Stored bytes do not match their digest, or images contradict themselves."""

    exit_code = 13


class TargetNotRunning(CrckptError):
    """The target is not running: there is no such process, or it ended before the freeze. No checkpoint was made."""

    exit_code = 14


class HostCannot(CrckptError):
    """This host lacks what the operation needs."""

    exit_code = 20


class DumpFailed(CrckptError):
    """No checkpoint was made; the tree keeps running."""

    exit_code = 21


class TreeStopped(DumpFailed):
    """No checkpoint was made, and the tree is paused or gone."""

    exit_code = 22


class RestoreFailed(CrckptError):
    """The tree was not restored; nothing is left behind."""

    exit_code = 23


class PreflightRefused(CrckptError):
    """The operation would fail, or lose something that the user did not agree to lose. Nothing was changed."""

    exit_code = 24

    def __init__(
        self, message: str, *, state: str = "", hint: str = "", causes: tuple[str, ...] = (), is_in_use: bool = False
    ) -> None:
        """`is_in_use`: another process has something that is needed (a PID, a port, a lock); the program may run."""
        super().__init__(message, state=state, hint=hint, causes=causes, causes_said=1)
        # `restore --or-older` then tries no older checkpoint: two of the same program could run.
        self.is_in_use = is_in_use


class RehearsalFailed(CrckptError):
    """A checkpoint could not be restored in isolation, or its tree did not keep running there. Nothing is left."""

    exit_code = 25


class RemoteError(CrckptError):
    """The other side of a migration failed or cannot be reached. Nothing was moved: the tree keeps running here."""

    exit_code = 30
    from_peer = False
    """Whether the other side has sent it: the connection works."""


class MoveInDoubt(CrckptError):
    """A migration is unfinished. The message says which side has the tree; the hint, what finishes the migration."""

    exit_code = 31


class Interrupted(CommandFailure):
    """The user or the system told crckpt to stop."""

    # No Exception: what goes on after an error must not go on after ^C. Nor a KeyboardInterrupt: of that, typer takes
    # the message away.

    exit_code = 130
