"""The catalogue of what stops a dump or a restore: message and remedy, once, for doctor, preflight and explain. Pure.

The tables are the files `*.txt`; `table.py` has their format. Only the preflight finds a cause without a `pattern`.
No line of a log matches two causes, except that these sections come first: messages of the kernel or other programs
(`outside`), bugs of the release (`bugs`), exhausted resources (`exhausted`). Errors after which CRIU may continue
(`passing`) and answers of the kernel (`general`) count only if no line has another cause.
A new cause is an entry of a table, and a line of a log in tests/data/logs/lines.tsv.
"""

from __future__ import annotations

from crckpt.causes.finding import Cause, Finding, Refusal, preflight_refusal
from crckpt.model import MEBIBYTE

__all__ = ["Cause", "Finding", "Refusal", "cause", "mebibytes", "preflight_refusal"]


def cause(key: str) -> Cause:
    """Return the cause with this key."""
    # Imported here: a healthy tree needs none of it.
    from crckpt.causes.catalogue import CAUSE_BY_KEY

    return CAUSE_BY_KEY[key]


def mebibytes(size: int) -> str:
    """Format a size in bytes for messages."""
    return f"{size / MEBIBYTE:,.0f} MiB" if size >= 10 * MEBIBYTE else f"{size / MEBIBYTE:,.1f} MiB"
