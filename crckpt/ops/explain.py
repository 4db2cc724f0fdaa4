"""A log of CRIU, explained."""

from __future__ import annotations

from pathlib import Path

from crckpt.criu.explain import Explanation, is_log
from crckpt.criu.explain import explain as told_by
from crckpt.errors import UsageError

_LOG_BYTES = 256 << 20
"""A log of CRIU is shorter; what never ends must not fill our memory."""


def explain(log: Path) -> Explanation:
    """What a log of `criu dump` or `criu restore` tells; `-` is stdin. Raises UsageError if it cannot be read."""
    standard = str(log) == "-"
    try:
        with open(0 if standard else log, "rb", closefd=not standard) as stream:
            written = stream.read(_LOG_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read the log {log}: {error.strerror}", hint="give a file, or - for what comes on stdin"
        ) from error
    if len(written) > _LOG_BYTES:
        raise UsageError(
            f"{log} is longer than {_LOG_BYTES >> 20} MiB: no log of CRIU is",
            hint="give its end: tail -c 64M LOG | crckpt explain -",
        )
    text = written.decode(errors="replace")
    if not is_log(text):
        named = "what came on stdin" if standard else str(log)
        what = "is no log of CRIU" if text.strip() else "is empty"
        raise UsageError(f"{named} {what}", hint="criu dump or criu restore writes one with: -v4 --log-file LOG")
    return told_by(text)
