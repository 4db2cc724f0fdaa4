"""A cause of the catalogue, and a finding: a cause that was met. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from msgspec import Struct

from crckpt.model import MEBIBYTE

LIKELY: Final = "most likely: "

OWN_LINES: Final = "CRIU's own lines"
"""In a remedy: they are shown with it."""

_PATHS: Final = ("path", "log", "name", "directory")


class Cause(Struct, frozen=True):
    """An obstacle to a dump or a restore. `says` and `remedy` are templates for the groups of `pattern`.

    `{name}` becomes the value, `{name|other words}` the other words if the value is not known. If the cause is not
    `sure`, CRIU writes the same in other cases: the message calls it the most likely one. CRIU does not have this cause
    from the release `fixed` on. `by_criu` is the remedy for users of criu without crckpt, if it is another one.
    `pattern` is a regular expression for what the `source` writes. It counts instead of the causes `instead_of` if it
    is in the log before theirs. `area` and `step` guess a cause from the source file of CRIU that wrote a line and from
    what CRIU was doing, `wide_area` and `last_step` too, but later: their guesses are worse.
    Paths in remedies are quoted for the shell: programs choose them, and people copy commands.
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

    def advise_by_criu(self, remedy: str) -> str:
        """Return the remedy in CRIU's own options for a `remedy` of this cause, whose names are filled in."""
        return self.by_criu or remedy.replace("run crckpt as root", "run criu as root")

    def finding(self, **values: object) -> Finding:
        """Fill in the names; an unknown value is shown as `?`."""
        quoted = {name: shlex.quote(str(values[name])) for name in _PATHS if name in values}
        says, remedy = self.says.format_map(_Known(values)), self.remedy.format_map(_Known(values | quoted))
        return Finding(self.key, says if self.sure else f"{LIKELY}{says}", remedy, self.sure)


def mebibytes(size: int) -> str:
    """Format a size in bytes for messages."""
    return f"{size / MEBIBYTE:,.0f} MiB" if size >= 10 * MEBIBYTE else f"{size / MEBIBYTE:,.1f} MiB"


class _Known(dict[str, object]):
    def __missing__(self, key: str) -> object:
        # str.format_map() looks up all that is between the braces, `name|other words`.
        name, _, otherwise = key.partition("|")
        return self.get(name, otherwise or "?")


class Finding(Struct, frozen=True, omit_defaults=True):
    """A cause that was met: `what` is the message, `remedy` what to do.

    It is not `sure` if CRIU writes the same for other causes; the message says so too.
    """

    key: str
    what: str
    remedy: str
    sure: bool = True

    @property
    def says_all(self) -> bool:
        """Whether nobody needs CRIU's own lines, too."""
        return self.sure and OWN_LINES not in self.remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}" if self.remedy else self.what
