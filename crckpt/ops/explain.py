"""A log of CRIU, explained."""

from __future__ import annotations

import sys
from pathlib import Path

from crckpt.criu.explain import Explanation
from crckpt.criu.explain import explain as told_by
from crckpt.errors import UsageError


def explain(log: Path) -> Explanation:
    """What a log of `criu dump` or `criu restore` tells; `-` is stdin. Raises UsageError if it cannot be read."""
    try:
        written = sys.stdin.buffer.read() if str(log) == "-" else log.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the log {log}: {error.strerror}", hint="give a file, or - for what comes on stdin"
        ) from error
    return told_by(written.decode(errors="replace"))
