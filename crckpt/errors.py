"""Every failure that a user can meet, each with its own exit code.

    CrckptError
    ├── UsageError              2   what was typed cannot be meant
    ├── StoreUnusable          10   not a store, wrong owner or mode, newer format, no space
    ├── StoreLocked            11   somebody else holds the store
    ├── NoSuchCheckpoint       12   the ref names nothing
    ├── IntegrityError         13   a digest does not match what is stored
    ├── HostCannot             20   this host lacks what is needed (CRIU, kernel, privileges)
    ├── DumpFailed             21   no checkpoint was made; the tree runs on
    │   └── TreeStopped        22   no checkpoint was made; the tree is stopped or lost
    ├── RestoreFailed          23   nothing was restored, nothing is left behind
    ├── PreflightRefused       24   known beforehand to fail or to lose something
    ├── RehearsalFailed        25   the checkpoint would not be restored, or the tree did not run on
    └── Interrupted           130   ^C or SIGTERM

A message says what and why; the hint is what to type next.
"""

from __future__ import annotations


class CrckptError(Exception):
    """A failure with a message for people, a hint, and an exit code."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", causes: tuple[str, ...] = ()) -> None:
        """`causes` are the single findings behind the message, one line each."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.causes = causes


class UsageError(CrckptError):
    """What was typed cannot be meant."""

    exit_code = 2


class StoreUnusable(CrckptError):
    """The directory is not a store that can be used."""

    exit_code = 10


class StoreLocked(CrckptError):
    """Somebody else holds the store's lock; the message names them."""

    exit_code = 11


class NoSuchCheckpoint(CrckptError):
    """The ref names no checkpoint."""

    exit_code = 12


class IntegrityError(CrckptError):
    """Stored bytes do not match their digest, or images contradict themselves."""

    exit_code = 13


class HostCannot(CrckptError):
    """This host lacks what the operation needs."""

    exit_code = 20


class DumpFailed(CrckptError):
    """No checkpoint was made; the tree runs on."""

    exit_code = 21


class TreeStopped(DumpFailed):
    """No checkpoint was made, and the tree is stopped or lost."""

    exit_code = 22


class RestoreFailed(CrckptError):
    """The tree was not restored; nothing is left behind."""

    exit_code = 23


class PreflightRefused(CrckptError):
    """Known beforehand to fail, or to lose something that was not agreed to.

    `is_in_use`: what is needed (a PID, a port, a lock) is another's at this moment; the program may run already.
    """

    exit_code = 24

    def __init__(self, message: str, *, hint: str = "", causes: tuple[str, ...] = (), is_in_use: bool = False) -> None:
        """`causes` as for every error; `is_in_use` as above."""
        super().__init__(message, hint=hint, causes=causes)
        self.is_in_use = is_in_use


class RehearsalFailed(CrckptError):
    """A checkpoint was not restored where it changes nothing, or its tree did not run on there. Nothing is left."""

    exit_code = 25


class Interrupted(CrckptError):
    """The user, or the system, asked crckpt to stop."""

    exit_code = 130
