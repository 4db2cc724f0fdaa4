"""A cause of the catalogue. Pure."""

from __future__ import annotations

from msgspec import Struct

from crckpt.causes.finding import Finding
from crckpt.model import MEBIBYTE


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


def mebibytes(size: int) -> str:
    """Format a size in bytes for messages."""
    return f"{size / MEBIBYTE:,.0f} MiB" if size >= 10 * MEBIBYTE else f"{size / MEBIBYTE:,.1f} MiB"
