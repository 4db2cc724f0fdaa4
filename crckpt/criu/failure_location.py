"""The process, descriptor and file at which CRIU was when it wrote a line of its log. Pure."""

from __future__ import annotations

import re
from itertools import islice

from msgspec import Struct

from crckpt.criu.log_lines import TIME, Line, line_at

_PROCESS = re.compile(r"[\w :.-]{1,60}(?<!processes )\((?:type: \d{1,9} )?pid: (\d{1,10})(?: comm: (.{0,64}))?\)")
_RULE = "-" * 40
_PROCESS_DONE = re.compile(r"Dumping task cwd id|Dumping file-locks")
_DESCRIPTOR = re.compile(r"\d{1,10} fdinfo (\d{1,10}): pos")
_PATH = re.compile(r"Dumping path for (-?\d{1,10}) fd via self \d{1,10} \[(.*)\]")
# The lines that say where CRIU is contain one of these.
_LOCATION = re.compile(rf"pid: \d|{_RULE}|{_PROCESS_DONE.pattern}| fdinfo \d|Dumping path for")
# At a restore each process writes lines of its own, prefixed with its PID.
_WRITER = re.compile(r"(?:\([\d.]{1,20}\) {0,8})?(?:pie: )?(\d{1,10}): ")
_OPEN_FAILED = re.compile(r"Unable to open fd=(\d{1,10}) id=")
# Lines after the cause in which a restore writes that.
_LINES_AFTER = 2
# Characters of the log after a line, or before it, that are searched.
_NEAR = 64 << 10
_OF_FILES = "(criu/files-reg.c:"
# A dump writes it before it refuses a unix socket whose other end is outside the tree: the inode of that end.
_OUTSIDE_END = re.compile(r"Dumped extern: id \S{1,20} ino (\d{1,20}) ")
# Lines between that and the last of its complaints, at most.
_LINES_BEFORE = 3
# Characters before the cause in which CRIU may have written where it was.
_FARTHEST = 8 << 20


class FailureLocation(Struct, frozen=True):
    """The process at which CRIU was, by its own log; `fd` and `path` if it was at a descriptor or a file.

    Callers that know the tree may replace `path` by the title of a socket.
    """

    pid: int
    comm: str = ""
    fd: int | None = None
    path: str = ""

    def __str__(self) -> str:
        process = f"process {self.pid} ({self.comm})" if self.comm else f"process {self.pid}"
        descriptor = "" if self.fd is None else f", fd {self.fd}"
        return f"{process}{descriptor}" + (f" ({self.path})" if self.path else "")


def find_failure_location(log: str, failed: Line) -> FailureLocation | None:
    """Find the process, descriptor and path that the writer of this line named last before it."""
    writer = _find_writer(failed.text)
    location = FailureLocation(int(writer)) if writer else None
    names: dict[int, str] = {}
    is_title = False
    end = max(0, failed.begin - _FARTHEST)
    while met := _LOCATION.search(log, end, failed.begin):
        line = line_at(log, met.start(), end)
        end = line.end
        if _find_writer(line.text) != writer:
            continue
        text = TIME.sub("", line.text, count=1)
        if found := _PROCESS.match(text):
            pid = int(found[1])
            names[pid] = found[2] or names.get(pid, "")
            location, is_title = FailureLocation(pid, names[pid]), True
        elif text.endswith(_RULE):
            # CRIU draws one below the title of each step of a process, and one at the end of the step.
            location, is_title = location if is_title else None, False
        elif location:
            location = _follow(location, text)
    if writer:
        after = log[failed.end : failed.end + _NEAR].splitlines()[1:]
        of_writer = (line for line in after if _find_writer(line) == writer)
        if found := _OPEN_FAILED.search("\n".join(islice(of_writer, _LINES_AFTER))):
            return FailureLocation(int(writer), fd=int(found[1]))
    if location and location.fd is None and _OF_FILES not in failed.text:
        # The path is that of a mapping that CRIU had dumped: it failed at the next one.
        return FailureLocation(location.pid, location.comm)
    return location


def find_outside_end(log: str, failed: Line) -> int:
    """Find the inode of the unix socket outside the tree to which a refused one is connected; 0 if there is none."""
    before = log[max(0, failed.begin - _NEAR) : failed.begin].splitlines()
    found = (_OUTSIDE_END.search(line) for line in reversed(before[-_LINES_BEFORE:]))
    return next((int(outside[1]) for outside in found if outside), 0)


def _find_writer(line: str) -> str:
    found = _WRITER.match(line)
    return found[1] if found else ""


def _follow(location: FailureLocation, text: str) -> FailureLocation | None:
    """Return the location of CRIU after it has written `text`."""
    if _PROCESS_DONE.match(text):
        return None
    if found := _DESCRIPTOR.match(text):
        return FailureLocation(location.pid, location.comm, int(found[1]))
    if found := _PATH.match(text):
        fd = int(found[1])
        # Negative: a file without a descriptor, such as a mapped one.
        return FailureLocation(location.pid, location.comm, fd if fd >= 0 else None, found[2])
    return location
