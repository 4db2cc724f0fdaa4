"""CRIU's log -> the first real cause. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from crckpt.causes import CATALOGUE, Finding

# Lines that CRIU also writes in good runs.
_HARMLESS = re.compile(r"Can't setup RLIMIT_NOFILE|tun: Unable to create tun|nftables: .*not supported")
_TELLING = re.compile(r"Error \(|Warn  \(|Unable to interrupt|CRIU needs to have|BUG at ")
_RUN_ID = re.compile(r"CRIU run id = (\S+)")


class Explanation(Struct, frozen=True):
    """`finding` is None when the log shows nothing that the catalogue knows; `lines` are the log's own."""

    finding: Finding | None
    lines: tuple[str, ...]


def explain(log: str) -> Explanation:
    """The first known cause in a log of `criu dump` or `criu restore`, and the lines that matter."""
    lines = tuple(line for line in log.splitlines() if _TELLING.search(line) and not _HARMLESS.search(line))
    findings = (finding for line in lines if (finding := _known(line)))
    return Explanation(next(findings, None), tuple(line for line in lines if "Warn " not in line)[:8])


def run_id(log: str) -> str | None:
    """The id of CRIU's run, which also names its network lock (`inet CRIU-<id>`)."""
    found = _RUN_ID.search(log)
    return found[1] if found else None


def _known(line: str) -> Finding | None:
    for cause in CATALOGUE:
        if cause.pattern and (found := re.search(cause.pattern, line)):
            return cause.told(**{name: text for name, text in found.groupdict().items() if text})
    return None
