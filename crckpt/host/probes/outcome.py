"""The result of a probe."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from crckpt.model import MEBIBYTE

GIBIBYTE: Final = 1 << 30


class Outcome(Struct, frozen=True):
    """The result of a probe. `state` is ok, limited (works in part, or was not tried) or missing.

    `consequence` is what it means for the user, `fix` the command that repairs it, if there is one. `safe`: the command
    removes nothing, so that `doctor --fix` may run it, word by word, without a shell.
    """

    state: str
    found: str
    consequence: str = ""
    fix: str = ""
    safe: bool = False


class Fact(Struct, frozen=True):
    """An outcome with the `key` of its probe, which scripts may use."""

    key: str
    state: str
    found: str
    consequence: str
    fix: str
    safe: bool


def fact(key: str, outcome: Outcome) -> Fact:
    """Make a fact of an outcome."""
    return Fact(key, *astuple(outcome))


def ok(found: str, consequence: str = "") -> Outcome:
    """The outcome of what works."""
    return Outcome("ok", found, consequence)


def limited(found: str, consequence: str, fix: str = "", *, safe: bool = False) -> Outcome:
    """The outcome of what works in part, or could not be tried."""
    return Outcome("limited", found, consequence, fix, safe)


def missing(found: str, consequence: str, fix: str = "", *, safe: bool = False) -> Outcome:
    """The outcome of what does not work."""
    return Outcome("missing", found, consequence, fix, safe)


def run_with_capabilities(*names: str) -> str:
    """The fix for capabilities that crckpt lacks, named without `CAP_`."""
    added = " ".join(f"--cap-add {name}" for name in names)
    return f"run crckpt with {', '.join(f'CAP_{name}' for name in names)} (in a container: docker run {added} ...)"


def free_of(free: int, total: int) -> str:
    """Bytes that are free of a total, for people."""
    unit, name = (GIBIBYTE, "GiB") if total >= GIBIBYTE else (MEBIBYTE, "MiB")
    return f"{free / unit:.1f} {name} free of {total / unit:.1f}"
