"""Find the release of CRIU that wrote a log: from its version, or from the source lines that it names. Pure."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

_LINES: Final = """
    2.0      1600   2138
    2.1         -   2217
    2.2         -   2226
    2.3      1598   1840
    2.4      1614   1857
    2.5      1625   1885
    2.6      1627   1886
    2.7         -   1889
    2.8      1635   1881
    2.9         -   1895
    2.10     1636   1893
    2.11.1      -   1897
    2.12.1   1641   1926
    3.0      1644   2029
    3.1         -   2107
    3.2      1654      -
    3.2.1       -   2099
    3.3      1657   2075
    3.4      1667   2145
    3.5      1697   2152
    3.6         -   2171
    3.7         -   2174
    3.8         -   2255
    3.8.1    1709   2252
    3.9      1706   2266
    3.10     1720   2309
    3.11     1732   2300
    3.12     1742   2293
    3.13     1743   2333
    3.14     1764   2397
    3.15     1768   2483
    3.16.1   1781   2447
    3.17.1   2053   2536
    3.18     2093   2547
    3.19     2098   2557
    4.0         -   2313
    4.1.1    2111   2320
    4.2      2128   2324
"""
# By `git grep -n FAILED TAG criu/cr-dump.c criu/cr-restore.c` in CRIU's repository.
LAST_LINES: Final = {
    (part, int(line)): tuple(map(int, release.split(".")))
    for release, *lines in map(str.split, _LINES.strip().splitlines())
    for part, line in zip(("dump", "restore"), lines, strict=True)
    if line != "-"
}
"""The source line of the last error message (cr-dump.c, cr-restore.c), and the newest release with that line."""

OLD = (3, 17)
"""Older CRIU does not know the restartable sequences of glibc 2.35, nor much that kernels have since."""

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
