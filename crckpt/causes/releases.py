"""Find the release of CRIU that wrote a log: from its version, or from the source lines that it names. Pure."""

from __future__ import annotations

import re
from itertools import islice

from crckpt.causes.cause import Cause

# By `git grep -n FAILED TAG criu/cr-dump.c criu/cr-restore.c` in CRIU's repository.
LAST_LINES = {
    ("dump", 1600): (2, 0),
    ("dump", 1614): (2, 4),
    ("dump", 1598): (2, 3),
    ("dump", 1625): (2, 5),
    ("dump", 1627): (2, 6),
    ("dump", 1636): (2, 10),
    ("dump", 1635): (2, 8),
    ("dump", 1641): (2, 12, 1),
    ("dump", 1644): (3, 0),
    ("dump", 1654): (3, 2),
    ("dump", 1657): (3, 3),
    ("dump", 1667): (3, 4),
    ("dump", 1697): (3, 5),
    ("dump", 1709): (3, 8, 1),
    ("dump", 1706): (3, 9),
    ("dump", 1720): (3, 10),
    ("dump", 1732): (3, 11),
    ("dump", 1742): (3, 12),
    ("dump", 1743): (3, 13),
    ("dump", 1764): (3, 14),
    ("dump", 1768): (3, 15),
    ("dump", 1781): (3, 16, 1),
    ("dump", 2053): (3, 17, 1),
    ("dump", 2093): (3, 18),
    ("dump", 2098): (3, 19),
    ("dump", 2111): (4, 1, 1),
    ("dump", 2128): (4, 2),
    ("restore", 2138): (2, 0),
    ("restore", 2217): (2, 1),
    ("restore", 2226): (2, 2),
    ("restore", 1840): (2, 3),
    ("restore", 1857): (2, 4),
    ("restore", 1885): (2, 5),
    ("restore", 1886): (2, 6),
    ("restore", 1889): (2, 7),
    ("restore", 1881): (2, 8),
    ("restore", 1895): (2, 9),
    ("restore", 1893): (2, 10),
    ("restore", 1897): (2, 11, 1),
    ("restore", 1926): (2, 12, 1),
    ("restore", 2029): (3, 0),
    ("restore", 2107): (3, 1),
    ("restore", 2099): (3, 2, 1),
    ("restore", 2075): (3, 3),
    ("restore", 2145): (3, 4),
    ("restore", 2152): (3, 5),
    ("restore", 2171): (3, 6),
    ("restore", 2174): (3, 7),
    ("restore", 2255): (3, 8),
    ("restore", 2252): (3, 8, 1),
    ("restore", 2266): (3, 9),
    ("restore", 2309): (3, 10),
    ("restore", 2300): (3, 11),
    ("restore", 2293): (3, 12),
    ("restore", 2333): (3, 13),
    ("restore", 2397): (3, 14),
    ("restore", 2483): (3, 15),
    ("restore", 2447): (3, 16, 1),
    ("restore", 2536): (3, 17, 1),
    ("restore", 2547): (3, 18),
    ("restore", 2557): (3, 19),
    ("restore", 2313): (4, 0),
    ("restore", 2320): (4, 1, 1),
    ("restore", 2324): (4, 2),
}
"""The source line of the last error message (cr-dump.c, cr-restore.c), and the newest release with that line."""

OLD = (3, 17)
"""Older CRIU does not know the restartable sequences of glibc 2.35, nor much that kernels have since."""

OLD_CRIU = Cause(
    "old-criu",
    "this CRIU, {release}, is too old for this kernel, C library or program: newer releases have no such known limit",
    "crckpt install-criu, then try again",
    sure=False,
)

_SAID = re.compile(
    r"^(?:\([\d.]{1,20}\) {0,8})?Version: (\d)\.(\d{1,2})(?:\.(\d{1,2}))?(?: \(gitid|\s*$)", re.MULTILINE
)
# Versions in reports of users.
_NAMED = re.compile(r"[Cc](?:riu|RIU)(?: [Vv]ersion)?[ :=-]{1,3}v?(\d)\.(\d{1,2})(?:\.(\d{1,2}))?\b")
# Words before a version that a message asks for.
_ASKED_FOR = ("least ", "than ", "before ", "since ", "requires ", "needs ")
# A log may be hostile: some megabytes once took more than half a minute.
_MOST_NAMED = 100
_LAST = re.compile(r"cr-(dump|restore)\.c:(\d{1,5})\): (?:Dumping|Restoring) FAILED")


def find_release(log: str) -> tuple[int, ...] | None:
    """Return the release of the CRIU that wrote this log, the newest of several possible ones; None if not known."""
    if said := _SAID.search(log):
        return _numbers(said)
    if last := _LAST.search(log):
        return LAST_LINES.get((last[1], int(last[2])))
    named = (found for found in islice(_NAMED.finditer(log), _MOST_NAMED) if not _is_asked_for(log, found.start()))
    return max(map(_numbers, named), default=None)


def _is_asked_for(log: str, position: int) -> bool:
    return log[max(0, position - 10) : position].endswith(_ASKED_FOR)


def _numbers(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(part) for part in found.groups() if part)
