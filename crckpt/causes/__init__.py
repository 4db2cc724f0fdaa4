"""The catalogue of what stops a dump or a restore: words and remedies, once, for preflight and explanations. Pure.

`pattern` is what CRIU writes to its log when it meets the cause (source file of CRIU 4.2 beside it); its groups fill
the sentence. A cause without a pattern is seen by the preflight only. No line fits two causes, but that what the kernel
or another program says (`OUTSIDE`), a bug of that release (`BUGS`) and what ran out (`EXHAUSTED`) come first, and what
CRIU may go on after (`PASSING`) or what the kernel answered (`GENERAL`) counts only where no line has a cause of its
own.
"""

from __future__ import annotations

from crckpt.causes.cause import Cause, Finding, mebibytes

__all__ = ["Cause", "Finding", "cause", "mebibytes"]


def cause(key: str) -> Cause:
    """The cause of that key."""
    # Of a healthy tree none is told: then the catalogue, which is long, is not loaded.
    from crckpt.causes.catalogue import CAUSE_BY_KEY

    return CAUSE_BY_KEY[key]
