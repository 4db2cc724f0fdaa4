"""What a probe says."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import astuple


class Outcome(Struct, frozen=True):
    """What was found. `state` is ok, limited (it does its work in part, or was not tried) or missing.

    `consequence` is what follows for the user, `fix` the command that mends it, where there is one. `safe`: the
    command takes nothing away, so that `doctor --fix` may run it, word by word, without a shell.
    """

    state: str
    found: str
    consequence: str = ""
    fix: str = ""
    safe: bool = False


class Fact(Struct, frozen=True):
    """One thing that was looked at: an outcome, and the `key` that names it, for scripts too."""

    key: str
    state: str
    found: str
    consequence: str
    fix: str
    safe: bool


def fact(key: str, outcome: Outcome) -> Fact:
    """What was found about `key`."""
    return Fact(key, *astuple(outcome))


def ok(found: str, consequence: str = "") -> Outcome:
    """It works."""
    return Outcome("ok", found, consequence)


def limited(found: str, consequence: str, fix: str = "", *, safe: bool = False) -> Outcome:
    """It works in part, or could not be tried."""
    return Outcome("limited", found, consequence, fix, safe)


def missing(found: str, consequence: str, fix: str = "", *, safe: bool = False) -> Outcome:
    """It does not work."""
    return Outcome("missing", found, consequence, fix, safe)
