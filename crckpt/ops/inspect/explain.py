"""A log of CRIU, explained."""

from __future__ import annotations

from pathlib import Path

from crckpt.criu.explain import Explanation, is_log
from crckpt.criu.explain import explain as told_by
from crckpt.errors import UsageError
from crckpt.host.disk.log_ends import EndlessError, NoFileError, read_file_ends, read_stream_ends


def explain(log: Path) -> Explanation:
    """What a log of `criu dump` or `criu restore` tells; `-` is stdin. Raises UsageError if it cannot be read.

    Of a long log the begin and the end are read.
    """
    text = read_log(log).decode(errors="replace")
    if not is_log(text):
        named = _name(log)
        what = "is no log of CRIU" if text.strip() else "is empty"
        raise UsageError(f"{named} {what}", hint="criu dump or criu restore writes one with: -v4 --log-file LOG")
    return told_by(text)


def read_log(log: Path) -> bytes:
    """The begin and the end of a file, or of stdin if it is `-`. Raises UsageError if it cannot be read."""
    try:
        return read_stream_ends(0) if str(log) == "-" else read_file_ends(log)
    except NoFileError as error:
        raise UsageError(f"{_name(log)} {error.strerror}", hint="give a file, or - for what comes on stdin") from error
    except EndlessError as error:
        raise UsageError(
            f"{_name(log)} {error.strerror}: it is not a log of CRIU",
            hint="pass only its end: tail -c 8M LOG | crckpt explain -",
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read the log {log}: {error.strerror}", hint="give a file, or - for what comes on stdin"
        ) from error


def _name(log: Path) -> str:
    return "what came on stdin" if str(log) == "-" else str(log)
