"""A finding: a cause that was met. The one place where it is put into words, for those who read them. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import PreflightRefused

LIKELY: Final = "most likely: "

Audience: TypeAlias = Literal["here", "criu", "move", "there"]
"""The user of a dump or restore; of criu without crckpt; of a move, for what this host or the other one has."""

_PATHS: Final = ("path", "log", "name", "directory")
_OF_MOVES: Final = ("moves", "changed-files")
"""Sections whose words are for users of a move anyway."""
# Gaps: CRIU's lines, which are shown then; the command for a newer CRIU.
_OWN_LINES: Final = "{own_lines|"
_NEWER: Final = "{newer|"
_GAP: Final = re.compile(r"\{([^{}|]+)(?:\|([^{}]*))?\}")


class Cause(Struct, frozen=True):
    """An obstacle to a dump or a restore. `says` and `remedy` are templates for the groups of `pattern`.

    `{name}` becomes the value, `{name|other words}` the other words if the value is not known. If the cause is not
    `sure`, CRIU writes the same in other cases: the message calls it the most likely one. CRIU does not have this cause
    from the release `fixed` on. `by_criu` is the remedy for users of criu without crckpt, `move` and `move_says` are
    the words for users of a move, if they are others. `of_source`: a destination finds what the source has.
    `pattern` is a regular expression for what the `source` writes. It counts instead of the causes `instead_of` if it
    is in the log before theirs. `area` and `step` guess a cause from the source file of CRIU that wrote a line and from
    what CRIU was doing, `wide_area` and `last_step` too, but later: their guesses are worse.
    Paths in remedies are quoted for the shell.
    """

    key: str
    says: str
    remedy: str = ""
    pattern: str = ""
    source: str = ""
    sure: bool = True
    fixed: tuple[int, ...] = ()
    by_criu: str = ""
    instead_of: tuple[str, ...] = ()
    area: str = ""
    wide_area: str = ""
    step: str = ""
    last_step: str = ""
    move: str = ""
    move_says: str = ""
    of_source: str = ""
    section: str = ""

    def finding(self, **values: object) -> Finding:
        """Make a finding of what is known; an unknown value is shown as `?`."""
        return Finding(self.key, tuple((name, str(value)) for name, value in values.items()), self.sure)


class Finding(Struct, frozen=True, omit_defaults=True):
    """A cause that was met: its key, what is known of it, and for whom it is put into words.

    It is not `sure` if CRIU writes the same for other causes; the message says so too. Values with a meaning of their
    own: `ref` names the checkpoint in commands (empty: it has no name yet, and such remedies are left out), `older`
    offers an older one, `newer_than` is an old release of CRIU, `lacking` what crckpt lacks of the capabilities that
    the remedy names, `peer` the other host of a move, `remedy_of` the key of a cause whose remedy fits better.
    """

    key: str
    values: tuple[tuple[str, str], ...] = ()
    sure: bool = True
    audience: Audience = "here"

    def __str__(self) -> str:
        what, remedy = self.what, self.remedy
        return f"{what}: {remedy}" if remedy else what

    @property
    def says_all(self) -> bool:
        """Whether nobody needs CRIU's own lines, too. A remedy names them by a gap."""
        return self.sure and _OWN_LINES not in _find_cause(self.key).remedy

    @property
    def what(self) -> str:
        """The fact, in words."""
        cause, known = _find_cause(self.key), dict(self.values)
        template, peer = cause.says, ""
        if self.audience in ("move", "there"):
            template = cause.move_says or template
            known |= {"restore": "the move", "output": "/dev/null"}
        if self.audience == "there" and not cause.of_source:
            known["this_host"] = "it"
            peer = f"{known['peer']}: "
        return f"{peer}{'' if self.sure else LIKELY}{_fill_in(template, known)}"

    @property
    def remedy(self) -> str:
        """The remedy, in words; empty if there is none."""
        cause, known = _find_cause(self.get("remedy_of") or self.key), dict(self.values)
        # Programs choose paths, and people copy commands.
        known |= {name: shlex.quote(path) for name, path in known.items() if name in _PATHS}
        template = cause.remedy
        if self.audience == "criu":
            template = cause.by_criu or template
            known["tool"] = "criu"
        elif self.audience != "here":
            template = cause.move or template
        if ref := known.get("ref"):
            known.setdefault("older", f"; or restore an older checkpoint: crckpt restore {ref} --or-older")
        elif ref == "" and "{ref|" in template:
            return ""
        remedy = _fill_in(template, known)
        if (release := known.get("newer_than")) and _NEWER not in cause.remedy:
            remedy = f"{remedy}; or use a newer CRIU than {release}: crckpt install-criu"
        is_typed_there = self.audience == "there" and not (cause.move or cause.section in _OF_MOVES)
        return f"on {known['peer']}: {remedy}" if remedy and is_typed_there else remedy

    def get(self, name: str) -> str:
        """Return a value, or an empty string."""
        return dict(self.values).get(name, "")

    def fill(self, **values: object) -> Finding:
        """Return the finding with more values."""
        known = dict(self.values) | {name: str(value) for name, value in values.items()}
        return replace(self, values=tuple(known.items()))

    def word_for(self, audience: Audience, **values: object) -> Finding:
        """Return the finding for other readers, with more values."""
        return replace(self.fill(**values), audience=audience)


class Refusal(PreflightRefused):
    """A refusal that was made of findings: the message is that of the first one."""

    findings: tuple[Finding, ...] = ()

    def fill(self, **values: object) -> Refusal:
        """Return the refusal with more values in its findings."""
        return preflight_refusal([found.fill(**values) for found in self.findings], is_in_use=self.is_in_use)


def preflight_refusal(blockers: Sequence[Finding], *, is_in_use: bool = False) -> Refusal:
    """Make the error for blockers. `is_in_use` as in PreflightRefused."""
    first, more = blockers[0], len(blockers) - 1
    said = f"{first.what} (and {more} more)" if more else first.what
    causes = tuple(str(finding) for finding in blockers)
    refusal = Refusal(said, hint=first.remedy, causes=causes, is_in_use=is_in_use)
    refusal.findings = tuple(blockers)
    return refusal


def distinct(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Leave out findings in the words of an earlier one."""
    return tuple({str(finding): finding for finding in reversed(tuple(findings))}.values())[::-1]


def separate(findings: Iterable[Finding], keys: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings that prevent an operation, and its warnings: those of one of the `keys`, in their order."""
    found = tuple(findings)
    warnings = sorted((each for each in found if each.key in keys), key=lambda each: keys.index(each.key))
    return tuple(each for each in found if each.key not in keys), tuple(warnings)


def _find_cause(key: str) -> Cause:
    # Imported here: a healthy tree needs none of it.
    from crckpt import causes

    return causes.cause(key)


def _fill_in(template: str, known: dict[str, str]) -> str:
    """Fill in `{name}` and `{name|other words}`, which stand for a value that is not known."""
    return _GAP.sub(lambda gap: known.get(gap[1], gap[2] or ("?" if gap[2] is None else "")), template)
