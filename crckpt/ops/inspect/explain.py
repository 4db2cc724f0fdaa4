"""Explain why CRIU failed, from its log."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from crckpt.criu.explain import Explanation, is_log
from crckpt.criu.explain import explain as explain_text
from crckpt.errors import UsageError
from crckpt.host.disk.log_excerpt import EndlessError, NoFileError, read_file_ends, read_stream_ends


def explain(log: Path) -> Explanation:
    """Explain why a `criu dump` or `criu restore` failed, from its log; `-` is stdin.

    Reads only the start and the end of a long log. Raises UsageError if it cannot be read or is not a CRIU log.
    """
    text = read_log(log).decode(errors="replace")
    # Otherwise any text would be explained by some word in it.
    if not is_log(text):
        named = _name(log)
        what = "is not a CRIU log" if text.strip() else "is empty"
        raise UsageError(f"{named} {what}", hint="to get one, run criu dump or criu restore with: -v4 --log-file LOG")
    found = explain_text(text)
    # crckpt explains its own failures at once, so this log is of a criu that something else started.
    return replace(found, finding=found.finding and found.finding.word_for("criu"))


def describe(explanation: Explanation) -> dict[str, object]:
    """Put an explanation into words, for a JSON document."""
    finding = explanation.finding
    return {
        "cause": finding.key if finding else None,
        "what": finding.what if finding else None,
        "remedy": finding.remedy if finding else None,
        "sure": finding.sure if finding else None,
        "place": explanation.place,
        "line": explanation.line or None,
        "lines": explanation.lines,
    }


def read_log(log: Path) -> bytes:
    """Read the start and the end of a file, or of stdin if it is `-`. Raises UsageError if it cannot be read."""
    try:
        return read_stream_ends(0) if str(log) == "-" else read_file_ends(log)
    except NoFileError as error:
        raise UsageError(f"{_name(log)} {error.strerror}", hint="name a file, or - for stdin") from error
    except EndlessError as error:
        raise UsageError(
            f"{_name(log)} {error.strerror}: it is not a CRIU log",
            hint="pass only its end: tail -c 8M LOG | crckpt explain -",
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read the log {log}: {error.strerror}", hint="name a file, or - for stdin") from error


def _name(log: Path) -> str:
    return "stdin" if str(log) == "-" else str(log)
