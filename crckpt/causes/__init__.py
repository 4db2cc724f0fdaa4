"""The catalogue of what stops a dump or a restore: message and remedy, once, for doctor, preflight and explain. Pure.

Each subject has a file. `pattern` matches what CRIU writes to its log for the cause, `source` is the file of CRIU 4.2;
the groups of the pattern fill the message. Only the preflight finds a cause without a pattern. No line matches two
causes, except that these come first: messages of the kernel or other programs (`OUTSIDE`), bugs of the release
(`BUGS`), exhausted resources (`EXHAUSTED`). Errors after which CRIU may continue (`PASSING`) and answers of the kernel
(`GENERAL`) count only if no line has another cause.
"""

from __future__ import annotations

from crckpt.causes.cause import Cause, Finding, mebibytes

__all__ = ["Cause", "Finding", "cause", "mebibytes"]


def cause(key: str) -> Cause:
    """Return the cause with this key."""
    # Imported here: the catalogue is long, and a healthy tree needs none of it.
    from crckpt.causes.catalogue import CAUSE_BY_KEY

    return CAUSE_BY_KEY[key]
