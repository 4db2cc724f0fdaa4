"""CRIU's log -> the first real cause, and where CRIU was then. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from crckpt.causes import Cause, Finding
from crckpt.causes.catalogue import GENERAL, SPECIFIC, WARNED

# Lines that CRIU also writes in good runs: the last two are tried again, or matter only where such a socket is met.
_HARMLESS = re.compile(
    r"Can't setup RLIMIT_NOFILE|tun: Unable to create tun|nftables: .*not supported"
    r'|execvp\("ip6?tables|ip6?tables(?:-legacy)?-(?:save|restore) -V failed'
    r"|zombie \d+ \(comm .*\) found while seizing|Diag module missing"
)
# What refuses to be traced is only warned of. What is said before the log is open has no mark.
_TELLING = re.compile(
    r"Error \(|Unable to interrupt|Can't connect to server|CRIU needs to have|Running as non-root|BUG at "
    "|no answer while"
)
_LONGEST = 4096
"""Characters of a line that are looked at: longer ones are not CRIU's."""
_MOST_LINES = 1000
"""Different lines that are looked for in the catalogue: a log with more of them is not CRIU's."""

_TIME = re.compile(r"^\([\d.]+\) *")
_WRITER = re.compile(rf"(?:{_TIME.pattern})?(?:pie: )?(\d+): ")
"""At a restore every process writes lines of its own, with its number before them."""
_PROCESS = re.compile(r"(?<!processes )\((?:type: \d+ )?pid: (\d+)(?: comm: (.*))?\)")
_RULE = "-" * 40
_PROCESS_DONE = re.compile(r"Dumping task cwd id|Dumping file-locks")
_DESCRIPTOR = re.compile(r"\d+ fdinfo (\d+): pos")
_PATH = re.compile(r"Dumping path for (-?\d+) fd via self \d+ \[(.*)\]")
_NOT_OPENED = re.compile(r"Unable to open fd=(\d+) id=")
_SAID_AFTER = 2
"""Lines after why in which a restore says that."""
_OF_FILES = "(criu/files-reg.c:"
_OUTSIDE_END = re.compile(r"Dumped extern: id \S+ ino (\d+) ")
"""What a dump says right before it refuses a unix socket whose other end, the one named, is outside the tree."""
_LONGEST_AGO = 3
"""Lines: its other complaints come at most so far after it."""


class Place(Struct, frozen=True):
    """What CRIU was at, by its own log: `fd` and `path` only where it was at a descriptor or a file.

    Who knows more than the log may put there what a socket is called.
    """

    pid: int
    comm: str = ""
    fd: int | None = None
    path: str = ""

    def __str__(self) -> str:
        process = f"process {self.pid} ({self.comm})" if self.comm else f"process {self.pid}"
        descriptor = "" if self.fd is None else f", fd {self.fd}"
        return f"{process}{descriptor}" + (f" ({self.path})" if self.path else "")


class Explanation(Struct, frozen=True):
    """`finding` is None when the log shows nothing that the catalogue knows; `lines` are the log's own.

    `line` is the one that told the cause, and `place` what CRIU was at then, None where the log does not say.
    `outside_end` is the inode of a unix socket outside the tree, to which a refused one is connected; 0 if none was.
    """

    finding: Finding | None
    lines: tuple[str, ...]
    line: str = ""
    place: Place | None = None
    outside_end: int = 0


def is_log(text: str) -> bool:
    """Whether any line begins with a time, as CRIU's do, or is one of those that it has before its log is open."""
    return any(_TIME.match(line) or _TELLING.search(line) for line in text.splitlines())


def explain(log: str) -> Explanation:
    """The first known cause in a log of `criu dump` or `criu restore`, and the lines that matter."""
    lines = log.splitlines()
    telling = dict(islice(_telling(lines), _MOST_LINES))
    shown = tuple(line for line in telling.values() if "Warn " not in line)[:8]
    for causes in (SPECIFIC, GENERAL, WARNED):
        for number, line in telling.items():
            if finding := _known(line, causes):
                return Explanation(finding, shown, line, _place(lines, number), _outside_end(lines, number))
    return Explanation(None, shown)


def _telling(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The lines that may tell why, with their numbers; of those that differ in their times only, the first."""
    seen: set[str] = set()
    for number, line in enumerate(line[:_LONGEST] for line in lines):
        if _TELLING.search(line) and not _HARMLESS.search(line):
            said = _TIME.sub("", line)
            if said not in seen:
                seen.add(said)
                yield number, line


def _known(line: str, causes: Iterable[Cause]) -> Finding | None:
    for cause in causes:
        if found := re.search(cause.pattern, line):
            return cause.told(**{name: text for name, text in found.groupdict().items() if text})
    return None


def _place(lines: Sequence[str], number: int) -> Place | None:
    """What the writer of that line said last of a process, a descriptor and a path."""
    writer = _writer(lines[number])
    place = Place(int(writer)) if writer else None
    names: dict[int, str] = {}
    begun = False
    for said in (line[:_LONGEST] for line in lines[:number] if _writer(line) == writer):
        if found := _PROCESS.search(said):
            pid = int(found[1])
            names[pid] = found[2] or names.get(pid, "")
            place, begun = Place(pid, names[pid]), True
        elif said.endswith(_RULE):
            # One stands below the title of what is done with a process, and one at its end.
            place, begun = place if begun else None, False
        elif place:
            place = _moved(place, said)
    if writer:
        after = islice((line for line in lines[number + 1 :] if _writer(line) == writer), _SAID_AFTER)
        if found := _NOT_OPENED.search("\n".join(after)):
            return Place(int(writer), fd=int(found[1]))
    if place and place.fd is None and _OF_FILES not in lines[number]:
        # The path of a mapping that was well: CRIU was at the next one.
        return Place(place.pid, place.comm)
    return place


def _outside_end(lines: Sequence[str], number: int) -> int:
    found = (_OUTSIDE_END.search(line[:_LONGEST]) for line in reversed(lines[max(0, number - _LONGEST_AGO) : number]))
    return next((int(told[1]) for told in found if told), 0)


def _writer(line: str) -> str:
    found = _WRITER.match(line)
    return found[1] if found else ""


def _moved(place: Place, said: str) -> Place | None:
    """Where CRIU is after it has said that."""
    if _PROCESS_DONE.search(said):
        return None
    if found := _DESCRIPTOR.search(said):
        return Place(place.pid, place.comm, int(found[1]))
    if found := _PATH.search(said):
        fd = int(found[1])
        return Place(place.pid, place.comm, fd if fd >= 0 else None, found[2])
    return place
