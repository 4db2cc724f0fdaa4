"""Find the first known cause in CRIU's log, and the process and descriptor at which CRIU was. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import msgspec
from msgspec import Struct

from crckpt.causes import Cause, Finding
from crckpt.causes.catalogue import (
    AREAS,
    BUGS,
    EARLIER,
    ENGINES,
    EXHAUSTED,
    GENERAL,
    LAST_STEPS,
    OLD_CRIU,
    OUTER,
    OUTSIDE,
    PASSING,
    SILENT,
    SPECIFIC,
    STEPS,
    UNFIT,
    UNSURE_PARTS,
    VAGUE,
    WARNED,
    WIDE_AREAS,
)
from crckpt.causes.releases import OLD, find_release
from crckpt.criu.log_lines import (
    TELLING,
    TIME,
    Line,
    RetypedLines,
    find_telling_lines,
    is_consequence,
    line_at,
    omit_consequences,
    only_joined,
    rejoin_lines,
    search,
    unquote,
)

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


_SOURCE = re.compile(r"Error \(([\w./-]{1,60}):\d{1,6}\)")
_FAILED = "ing FAILED."

# The code that CRIU runs inside of a process has no texts of errors: it writes their numbers.
_ANSWERED = re.compile(r"/pie/\w{1,30}\.c:\d{1,6}\): .{0,600}?[^\w-](-\d{1,3})\)?$")
_WORDS = {
    "-2": "No such file or directory",
    "-3": "No such process",
    "-13": "Permission denied",
    "-16": "Device or resource busy",
    "-22": "Invalid argument",
    "-38": "Function not implemented",
    "-95": "Operation not supported",
}


class Explanation(Struct, frozen=True):
    """The cause that a log tells; `finding` is None if the catalogue knows none. `lines` are the log's own.

    `line` told the cause; `place` is None where the log does not say where CRIU was. `outside_end` is the inode of a
    unix socket outside the tree, to which a refused one is connected; 0 if there is none.
    """

    finding: Finding | None
    lines: tuple[str, ...]
    line: str = ""
    place: FailureLocation | None = None
    outside_end: int = 0


def is_log(text: str) -> bool:
    """Return whether any line is one of CRIU's: begins with a time, or tells a cause."""
    return bool(
        TIME.search(text)
        or TELLING.search(text)
        or any(_find_known((*OUTSIDE, *SPECIFIC), line) for line in RetypedLines(unquote(text), ()))
    )


def explain(log: str) -> Explanation:
    """Find the first known cause in a log of `criu dump` or `criu restore`, and the lines that matter.

    Takes time and memory in proportion to the log's length at most, whatever the log contains.
    """
    log = rejoin_lines(unquote(log))
    telling = find_telling_lines(log)
    shown = tuple(line.text for line in telling if "Warn " not in line.text)[:8]
    release = find_release(log)
    silent = None
    if _FAILED in log and all(is_consequence(line) for line in telling):
        # It failed and did not complain: what else it wrote may tell.
        fitting = ((cause, re.search(cause.pattern, log)) for cause in SILENT if not _is_fixed(cause, release))
        silent = next(((cause.finding(**found.groupdict()), found.start()) for cause, found in fitting if found), None)
    for line, finding in _find_causes(log, telling, release):
        # A sure cause beats the silence; the silence beats a guess.
        if silent and not finding.sure:
            break
        # An earlier warning may tell more.
        earlier = (cause for cause in EARLIER if finding.key in cause.instead_of)
        warned = ((cause, re.compile(cause.pattern).search(log, 0, line.begin)) for cause in earlier)
        finding = next((cause.finding(**found.groupdict()) for cause, found in warned if found), finding)
        if not finding.sure and release and release < OLD:
            finding = finding.fill(newer_than=".".join(map(str, release)))
        location = find_failure_location(log, line)
        return Explanation(finding, shown, line.text, location, find_outside_end(log, line))
    if silent:
        return Explanation(silent[0], shown, line_at(log, silent[1], 0).text)
    if release and release < OLD and shown:
        return Explanation(OLD_CRIU.finding(release=".".join(map(str, release))), shown)
    return Explanation(None, shown)


def _find_causes(
    log: str, telling: tuple[Line, ...], release: tuple[int, ...] | None
) -> Iterator[tuple[Line, Finding]]:
    """Yield the causes that the lines tell, the surest first."""
    general = tuple(cause for cause in GENERAL if not _is_fixed(cause, release))
    bugs = tuple(msgspec.structs.replace(bug, sure=bool(release)) for bug in BUGS if not _is_fixed(bug, release))
    specific = partial(_find_known, (*bugs, *SPECIFIC))
    # Other programs write that something ran out, too.
    of_others = tuple(msgspec.structs.replace(cause, sure=False) for cause in EXHAUSTED)
    retyped_specific = (*OUTSIDE, *bugs, *of_others, *SPECIFIC[len(EXHAUSTED) :])

    def vague(line: Line) -> Finding | None:
        return None if is_consequence(line) else _find_known(VAGUE, _spell_out_error(line))

    # Lazy: needed only where the lines as they are tell nothing.
    retyped = RetypedLines(log, telling)
    joined = tuple(only_joined(telling))
    tiers: tuple[tuple[Iterable[Line], Callable[[Line], Finding | None]], ...] = (
        (telling, partial(_find_known, OUTSIDE)),
        (joined, specific),
        (joined, partial(_find_known, PASSING)),
        (only_joined(retyped), partial(_find_known, retyped_specific)),
        (omit_consequences(telling), lambda line: _find_known(general, _spell_out_error(line))),
        (retyped.complaints(), partial(_find_known, PASSING)),
        (omit_consequences(retyped.complaints()), lambda line: _find_known(general, _spell_out_error(line))),
        (telling, specific),
        (joined, lambda line: _find_known((*WARNED, *UNSURE_PARTS), line) or _find_by_area(AREAS, line)),
        (telling, partial(_find_known, ENGINES)),
        (omit_consequences(retyped.complaints()), partial(_find_known, (*ENGINES, *UNSURE_PARTS))),
        (retyped.complaints(), partial(_find_by_area, AREAS)),
        (telling, vague),
        (retyped.complaints(), vague),
        (telling, partial(_find_by_area, WIDE_AREAS)),
        (telling, lambda line: _find_known(UNFIT, _spell_out_error(line))),
        (retyped.complaints(), lambda line: _find_known(UNFIT, _spell_out_error(line))),
        (telling, partial(_find_by_step, STEPS)),
        (telling, partial(_find_by_step, LAST_STEPS)),
        (omit_consequences(retyped), partial(_find_known, (*PASSING, *ENGINES, *general, *WARNED, *UNSURE_PARTS))),
        (telling, partial(_find_known, OUTER)),
        (retyped, partial(_find_known, OUTER)),
        (retyped, lambda line: vague(line) or _find_known(UNFIT, line)),
        (retyped, partial(_find_by_step, (*STEPS, *LAST_STEPS))),
        (retyped.complaints(), partial(_find_by_area, WIDE_AREAS)),
    )
    for lines, look_up in tiers:
        for line in lines:
            finding = look_up(line)
            if finding and not finding.sure:
                yield from _find_surer_before(retyped, line)
            if finding:
                yield line, finding


def _find_surer_before(retyped: Iterable[Line], line: Line) -> Iterator[tuple[Line, Finding]]:
    """Find sure causes in earlier lines without the mark that CRIU puts before its own."""
    for earlier in retyped:
        if earlier.begin >= line.begin:
            return
        alone = earlier._replace(forms=earlier.forms[-1:])
        if (finding := _find_known(SPECIFIC, alone)) and finding.sure:
            yield earlier, finding


def _find_known(causes: Iterable[Cause], line: Line) -> Finding | None:
    for form in line.forms:
        for cause in causes:
            if found := search(cause.pattern, form, retyped=line.retyped):
                # Engines quote the line ends of CRIU.
                return cause.finding(
                    **{name: text.split("\\n", 1)[0] for name, text in found.groupdict().items() if text}
                )
    return None


def _is_fixed(cause: Cause, release: tuple[int, ...] | None) -> bool:
    return bool(cause.fixed and release and release >= cause.fixed)


def _spell_out_error(line: Line) -> Line:
    """Append the text of the error whose number the line ends with."""
    for form in line.forms:
        answered = _ANSWERED.search(form)
        if answered and (words := _WORDS.get(answered[1])):
            return line._replace(forms=(f"{form}: {words}",))
    return line


def _find_by_area(areas: Iterable[tuple[str, Cause]], line: Line) -> Finding | None:
    """Guess the cause of a complaint by the source file of CRIU that wrote it: most likely, but not sure."""
    written = search(_SOURCE.pattern, line.forms[-1], retyped=line.retyped)
    if not written or is_consequence(line):
        return None
    # Before CRIU 2.0 its files had no directory.
    file = written[1].removeprefix("criu/")
    return _unsure(next((cause for pattern, cause in areas if re.fullmatch(pattern, file)), None))


def _find_by_step(steps: Iterable[tuple[str, Cause]], line: Line) -> Finding | None:
    """Guess the cause by what CRIU was doing: it writes such a line after another complaint."""
    found = (cause for pattern, cause in steps if search(pattern, line.forms[-1], retyped=line.retyped))
    return _unsure(next(found, None))


def _unsure(cause: Cause | None) -> Finding | None:
    return msgspec.structs.replace(cause, sure=False).finding() if cause else None
