"""CRIU's log -> the first real cause, and where CRIU was then. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec import Struct

from crckpt.causes import Cause, Finding
from crckpt.causes.catalogue import (
    AREAS,
    BUGS,
    CAUSE_BY_KEY,
    EARLIER,
    ENGINES,
    GENERAL,
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
from crckpt.causes.releases import OLD, OLD_CRIU, find_release
from crckpt.causes.resource_limits import EXHAUSTED
from crckpt.criu.quoted_logs import join_lines, loosen, tidy, unquote

# Lines that CRIU also writes in good runs: the last three do no harm, are tried again, or matter only where such a
# socket is met.
_HARMLESS = re.compile(
    r"Can't setup RLIMIT_NOFILE|tun: Unable to create tun|nftables: .*not supported"
    r'|execvp\("ip6?tables|ip6?tables(?:-legacy)?-(?:save|restore) -V failed'
    r"|Unable to create the binfmt_misc file system(?!.*criu swrk failed)"
    r"|zombie \d+ \(comm .*\) found while seizing|Diag module missing"
)
# A group has its name once only.
_UNNAMED = tuple(re.sub(r"\(\?P<\w+>", "(?:", engine.pattern) for engine in (*OUTSIDE, *ENGINES, *OUTER))
# What refuses to be traced is only warned of. What is said before the log is open has no mark, nor what other programs
# say; of what people copied the word in front is often missing.
_TELLING = re.compile(
    r"Error \(|(?<![Ww]arn  )\((?:criu|compel)/[\w./-]{1,60}:\d{1,6}\): |[Uu]nable to interrupt|Can't connect to server"
    "|CRIU needs to have|Running as non-root|BUG at |no answer while|(?:CHAIN|RULE)_[A-Z_]{1,20} failed"
    "|cannot be entered: |error while loading shared libraries|Can't exec criu swrk"
    "|criu: (?:unrecognized|invalid) option"
    # CRIU's own lines, of which a log has many, begin with a time, and those of others do not.
    rf"|^(?!\(\d)[^\n]*?(?:{'|'.join(_UNNAMED)})",
    re.MULTILINE,
)
_SOURCE = re.compile(r"Error \(([\w./-]{1,60}):\d{1,6}\)")
_FAILED = "ing FAILED."
_LOG_NAMED = re.compile(r"\n\n?(?=log file: )")
"""runc tells the path of CRIU's log on a line of its own."""
_ENGINE = re.compile("|".join(_UNNAMED))
_PLAIN = re.compile(r"^(?!\(\d)[^\n]+|^[^\n]{0,60}\b[Ee]rror(?:: |[ \t]{1,4}\()[^\n]*", re.MULTILINE)
"""Lines without what CRIU puts before its own: people leave it out."""
_WARNING = re.compile(r"\b[Ww]arn {1,2}\(")
_MOST_PLAIN = 100
"""Of them, the last different ones that are looked up."""
_LONGEST_RETYPED = 400
"""Characters of such a line that are looked at."""
_MOST_BROKEN = 50
"""Complaints whose next lines may go on with them."""
_NO_IPTABLES = 'execvp("iptables-restore"'
_NEAR = 400
# What CRIU says after another complaint: it is a cause only where nothing else was complained of.
_CONSEQUENCE = re.compile(
    r"killed by signal|was killed by \d|exited, status=|Restorer (?:fail|abnormal)|(?:Restoring|Dumping) FAILED"
    r"|failed with -?\d+$|Unable to open fd=|Child \d+ died|Failed to wait on helpers|Can't infect"
    r"|Can't dump (?:page|thread)|Parasite (?:exited|failed)|Command \d+ for daemon failed|Can't init thread"
    r"|`- Can't open vma|Can't wait or bad status|Can't make \w+ id|munmap for remote|Trimmed message"
    r"|Killing processes because of failure|(?:Pre-dumping|Lazy pages transfer) FAILED|Can't (?:cure|stop daemon)"
    r"|Can't dump (?:itimers|misc|posix timers|private signals|shared signals|sigactions|unprotect)|si_code=\d"
    r"|Unable to interrupt the current operation|Can't (?:catch|stop) all tasks|Can't obtain regs for thread"
    r"|Can't copy creds for|Can't retrieve FDs? from socket|Can't get proc fd|can't get /proc|Can't get fd=?\s?\d"
    r"|Namespaces dumping finished|Pre-dumping files failed|Dump \d+ (?:rseq|signals) failed|Couldn't unlink remap"
    r"|Failed to clenaup|Failed to unlink the remap|Unable to (?:remove|umount|clear breakpoints|detach from) "
    r"|Can't (?:remove|umount|unmount|detach|delete) |worker failed: |Unable to restore freezer state"
    r"|Service fd \S+ is being modified in protected|: stack \d+#\d"
)
_LONGEST_BEGIN, _LONGEST_END = 700, 300
"""Characters of the begin and of the end of a line that are looked at: no pattern takes long for so few."""
_MOST_LINES = 500
"""Different lines that are looked for in the catalogue: a log with more of them is not CRIU's."""
_MOST_COMPLAINTS = 200_000
_FARTHEST = 8 << 20
"""Characters before the line that told why in which CRIU may have said where it was."""

_TIME = re.compile(r"^\([\d.]{1,20}\) {0,8}", re.MULTILINE)
_CUT = re.compile(r">\n(?:\([\d.]{1,20}\) ?)?pie: (?:\d{1,10}: )?")
"""The restorer has little room for a line: before CRIU 3.16 it cut longer ones in pieces."""
_WRAPPED = re.compile(r"(Error \([^\n]{1,300})\n {2,8}(?=[/a-z])")
"""What people copied may be broken into lines; CRIU begins each of its own with a time, a number or a word."""
_WRITER = re.compile(r"(?:\([\d.]{1,20}\) {0,8})?(?:pie: )?(\d{1,10}): ")
"""At a restore every process writes lines of its own, with its number before them."""
_PROCESS = re.compile(r"[\w :.-]{1,60}(?<!processes )\((?:type: \d{1,9} )?pid: (\d{1,10})(?: comm: (.{0,64}))?\)")
_RULE = "-" * 40
_PROCESS_DONE = re.compile(r"Dumping task cwd id|Dumping file-locks")
_DESCRIPTOR = re.compile(r"\d{1,10} fdinfo (\d{1,10}): pos")
_PATH = re.compile(r"Dumping path for (-?\d{1,10}) fd via self \d{1,10} \[(.*)\]")
_PLACED = re.compile(rf"pid: \d|{_RULE}|{_PROCESS_DONE.pattern}| fdinfo \d|Dumping path for")
"""What is in the lines that say where CRIU is."""
_ANSWERED = re.compile(r"/pie/\w{1,30}\.c:\d{1,6}\): .{0,600}?[^\w-](-\d{1,3})\)?$")
"""What runs inside of a process has no words for errors: it tells their numbers."""
_WORDS = {
    "-2": "No such file or directory",
    "-3": "No such process",
    "-13": "Permission denied",
    "-16": "Device or resource busy",
    "-22": "Invalid argument",
    "-38": "Function not implemented",
    "-95": "Operation not supported",
}
_NOT_OPENED = re.compile(r"Unable to open fd=(\d{1,10}) id=")
_SAID_AFTER = 2
"""Lines after why in which a restore says that."""
_AFTER = 64 << 10
_OF_FILES = "(criu/files-reg.c:"
_OUTSIDE_END = re.compile(r"Dumped extern: id \S{1,20} ino (\d{1,20}) ")
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


class _Line(NamedTuple):
    """A line of a log, shortened, and where in the log it begins and ends.

    `forms` are the texts by which it is looked up: with the next lines if these seem to go on with it, and alone.
    """

    text: str
    begin: int
    end: int
    forms: tuple[str, ...] = ()
    retyped: bool = False


def is_log(text: str) -> bool:
    """Whether any line is one of CRIU's: begins with a time, or tells a cause."""
    return bool(
        _TIME.search(text)
        or _TELLING.search(text)
        or any(_known((*OUTSIDE, *SPECIFIC), line) for line in _Retyped(unquote(text), ()))
    )


def explain(log: str) -> Explanation:
    """The first known cause in a log of `criu dump` or `criu restore`, and the lines that matter.

    Takes time and memory in proportion to the log's length at most, whatever is in it.
    """
    log = _LOG_NAMED.sub(" ", unquote(log))
    log = _WRAPPED.sub(r"\1 ", _WRAPPED.sub(r"\1 ", _CUT.sub("", log)))
    telling = tuple(_with_forms(log, islice(_telling(log), _MOST_LINES)))
    shown = tuple(line.text for line in telling if "Warn " not in line.text)[:8]
    release = find_release(log)
    is_silent = _FAILED in log and all(_is_consequence(line) for line in telling)
    unsaid = _without_complaint(log, shown) if is_silent else None
    for line, found in _findings(log, telling, release):
        if unsaid and unsaid.finding and not found.sure:
            break
        finding = _with_earlier_cause(log, line, found)
        told = finding if finding.sure else _with_age(finding, release)
        return Explanation(told, shown, line.text, _place(log, line), _outside_end(log, line))
    if unsaid and unsaid.finding:
        return unsaid
    is_old = release is not None and release < OLD and bool(shown)
    return Explanation(OLD_CRIU.finding(release=_written(release)) if release and is_old else None, shown)


def _with_age(finding: Finding, release: tuple[int, ...] | None) -> Finding:
    """The finding, which is not sure; of an old CRIU with the advice to take another."""
    if release is None or release >= OLD or "install-criu" in finding.remedy:
        return finding
    remedy = f"{finding.remedy}; or take a newer CRIU than {_written(release)}: scripts/install-criu"
    return msgspec.structs.replace(finding, remedy=remedy)


def _written(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def _findings(log: str, telling: tuple[_Line, ...], release: tuple[int, ...] | None) -> Iterator[tuple[_Line, Finding]]:
    """What the lines tell, what is surest first."""
    general = tuple(cause for cause in GENERAL if not _is_fixed(cause, release))
    bugs = tuple(msgspec.structs.replace(bug, sure=bool(release)) for bug in BUGS if not _is_fixed(bug, release))
    specific = partial(_known, (*bugs, *SPECIFIC))
    # Other programs say that something ran out, too.
    of_others = tuple(msgspec.structs.replace(cause, sure=False) for cause in EXHAUSTED)
    retyped_specific = (*OUTSIDE, *bugs, *of_others, *SPECIFIC[len(EXHAUSTED) :])

    def vague(line: _Line) -> Finding | None:
        return None if _is_consequence(line) else _known(VAGUE, _in_words(line))

    # Looked for only where the lines as they are tell nothing.
    retyped = _Retyped(log, telling)
    whole = tuple(_whole(telling))
    tiers: tuple[tuple[Iterable[_Line], Callable[[_Line], Finding | None]], ...] = (
        (telling, partial(_known, OUTSIDE)),
        (whole, specific),
        (whole, partial(_known, PASSING)),
        (retyped.whole(), partial(_known, retyped_specific)),
        (_before_unknown(telling), lambda line: _known(general, _in_words(line))),
        (retyped.complaints(), partial(_known, PASSING)),
        (_before_unknown(retyped.complaints()), lambda line: _known(general, _in_words(line))),
        (telling, specific),
        (whole, lambda line: _known((*WARNED, *UNSURE_PARTS), line) or _of_area(AREAS, line)),
        (telling, partial(_known, ENGINES)),
        (_before_unknown(retyped.complaints()), partial(_known, (*ENGINES, *UNSURE_PARTS))),
        (retyped.complaints(), partial(_of_area, AREAS)),
        (telling, vague),
        (retyped.complaints(), vague),
        (telling, partial(_of_area, WIDE_AREAS)),
        (telling, lambda line: _known(UNFIT, _in_words(line))),
        (retyped.complaints(), lambda line: _known(UNFIT, _in_words(line))),
        (telling, partial(_of_step, STEPS[:-1])),
        (telling, partial(_of_step, STEPS[-1:])),
        (_before_unknown(retyped), partial(_known, (*PASSING, *ENGINES, *general, *WARNED, *UNSURE_PARTS))),
        (telling, partial(_known, OUTER)),
        (retyped, partial(_known, OUTER)),
        (retyped, lambda line: vague(line) or _known(UNFIT, line)),
        (retyped, partial(_of_step, STEPS)),
        (retyped.complaints(), partial(_of_area, WIDE_AREAS)),
    )
    for lines, look_up in tiers:
        for line in lines:
            finding = look_up(line)
            if finding and not finding.sure:
                yield from _find_surer_before(retyped, line)
            if finding:
                yield line, finding


def _with_earlier_cause(log: str, line: _Line, finding: Finding) -> Finding:
    """Return the cause that an earlier warning tells, or the finding itself."""
    for keys, cause in EARLIER:
        if finding.key in keys and (found := re.compile(cause.pattern).search(log, 0, line.begin)):
            return cause.finding(**found.groupdict())
    return finding


def _find_surer_before(retyped: Iterable[_Line], line: _Line) -> Iterator[tuple[_Line, Finding]]:
    """Find sure causes in earlier lines without the mark that CRIU puts before its own."""
    for earlier in retyped:
        if earlier.begin >= line.begin:
            return
        alone = earlier._replace(forms=earlier.forms[-1:])
        if (finding := _known(SPECIFIC, alone)) and finding.sure:
            yield earlier, finding


class _Retyped:
    """The lines once more, and those without what CRIU puts before its own, as they are looked up without care."""

    def __init__(self, log: str, telling: tuple[_Line, ...]) -> None:
        self._log, self._telling = log, telling

    def __iter__(self) -> Iterator[_Line]:
        return iter(self._lines)

    def whole(self) -> Iterator[_Line]:
        """Each with those that go on with it."""
        yield from _whole(self)

    def complaints(self) -> Iterator[_Line]:
        """Those that look like CRIU's."""
        known = {line.begin for line in self._telling}
        yield from (line for line in self.whole() if line.begin in known and not _is_of_others(line))

    @cached_property
    def _lines(self) -> tuple[_Line, ...]:
        known = {line.begin for line in self._telling}
        plain = [line for line in _plain(self._log) if line.begin not in known]
        lines = sorted((*self._telling[:_MOST_BROKEN], *_with_forms(self._log, plain)), key=lambda line: line.begin)
        return tuple(line._replace(forms=_tidy_forms(line.forms), retyped=True) for line in lines)


def _without_complaint(log: str, shown: tuple[str, ...]) -> Explanation:
    """Of a CRIU that failed and did not say why, what else it said."""
    for cause in SILENT:
        if found := re.search(cause.pattern, log):
            return Explanation(cause.finding(**found.groupdict()), shown, _line_at(log, found.start(), 0).text)
    return Explanation(None, shown)


def _tidy_forms(forms: tuple[str, ...]) -> tuple[str, ...]:
    short = tuple(form for form in forms if len(form) <= _LONGEST_RETYPED)
    return tuple(map(tidy, short or (forms[-1][:_LONGEST_RETYPED],)))


def _before_unknown(telling: Iterable[_Line]) -> Iterator[_Line]:
    """The lines, without the consequences of a complaint that no cause fits: that is the cause, and is not known."""
    unknown = False
    for line in telling:
        is_consequence = _is_consequence(line)
        if not (is_consequence and unknown):
            yield line
        unknown = unknown or not (is_consequence or "Warn " in line.text or _is_of_others(line))


def _is_of_others(line: _Line) -> bool:
    """That an engine says that CRIU failed is no complaint of CRIU's, nor is what people write."""
    return not _TELLING.search(line.text) or ("Error (" not in line.text and bool(_ENGINE.search(line.text)))


def _is_consequence(line: _Line) -> bool:
    return any(_search(_CONSEQUENCE.pattern, form, retyped=line.retyped) for form in line.forms)


def _whole(lines: Iterable[_Line]) -> Iterator[_Line]:
    """The lines, each to be looked up only with those that go on with it."""
    return (line._replace(forms=line.forms[:1]) for line in lines)


def _with_forms(log: str, lines: Iterable[_Line]) -> Iterator[_Line]:
    """The lines, with those that go on with them."""
    for number, line in enumerate(lines):
        following = _next_lines(log, line.end) if number < _MOST_BROKEN else iter(())
        yield line._replace(forms=join_lines(line.text, following))


def _next_lines(log: str, end: int) -> Iterator[str]:
    while end < len(log):
        line = _line_at(log, end + 1, end + 1)
        yield line.text
        end = line.end


def _plain(log: str) -> list[_Line]:
    """The last different lines without what CRIU puts before its own."""
    found: dict[str, _Line] = {}
    for match in _PLAIN.finditer(log):
        line = _line_at(log, match.start(), match.start())
        if _WARNING.search(line.text) or _is_harmless(log, line):
            continue
        found.pop(line.text, None)
        found[line.text] = line
        if len(found) > _MOST_PLAIN:
            del found[next(iter(found))]
    return list(found.values())


def _telling(log: str) -> Iterator[_Line]:
    """The lines that may tell why; of those that differ in their times only, the first."""
    seen: set[str] = set()
    end = 0
    for _ in range(_MOST_COMPLAINTS):
        found = _TELLING.search(log, end)
        if found is None:
            return
        line = _line_at(log, found.start(), end)
        end = line.end
        said = _TIME.sub("", line.text, count=1)
        if said not in seen and _TELLING.search(line.text) and not _is_harmless(log, line):
            seen.add(said)
            yield line


def _is_harmless(log: str, line: _Line) -> bool:
    """That one of several iptables is not there counts only if it was not just asked for its version."""
    if not _HARMLESS.search(line.text):
        return False
    return not (_NO_IPTABLES in line.text and "-V failed" not in log[line.end : line.end + _NEAR])


def _line_at(log: str, position: int, earliest: int) -> _Line:
    """The line around `position`, which does not begin before `earliest`."""
    begin = log.rfind("\n", earliest, position) + 1 or earliest
    end = log.find("\n", position)
    end = len(log) if end < 0 else end
    if end - begin <= _LONGEST_BEGIN + _LONGEST_END:
        return _Line(log[begin:end].rstrip("\r"), begin, end)
    return _Line(f"{log[begin : begin + _LONGEST_BEGIN]}...{log[end - _LONGEST_END : end]}", begin, end)


def _known(causes: Iterable[Cause], line: _Line) -> Finding | None:
    for form in line.forms:
        for cause in causes:
            if found := _search(cause.pattern, form, retyped=line.retyped):
                # Engines quote the line ends of CRIU.
                return cause.finding(
                    **{name: text.split("\\n", 1)[0] for name, text in found.groupdict().items() if text}
                )
    return None


def _search(pattern: str, text: str, *, retyped: bool) -> re.Match[str] | None:
    return loosen(pattern).search(text) if retyped else re.search(pattern, text)


def _is_fixed(cause: Cause, release: tuple[int, ...] | None) -> bool:
    return bool(cause.fixed and release and release >= cause.fixed)


def _in_words(line: _Line) -> _Line:
    """The line, with what the kernel answered said in words."""
    for form in line.forms:
        answered = _ANSWERED.search(form)
        if answered and (words := _WORDS.get(answered[1])):
            return line._replace(forms=(f"{form}: {words}",))
    return line


def _of_area(areas: Iterable[tuple[str, str]], line: _Line) -> Finding | None:
    """What a complaint is about by the file of CRIU that made it: most likely, but not sure."""
    written = _search(_SOURCE.pattern, line.forms[-1], retyped=line.retyped)
    if not written or _is_consequence(line):
        return None
    # Before CRIU 2.0 its files had no directory.
    file = written[1].removeprefix("criu/")
    key = next((key for pattern, key in areas if re.fullmatch(pattern, file)), None)
    return _unsure(key)


def _of_step(steps: Iterable[tuple[str, str]], line: _Line) -> Finding | None:
    """Find what CRIU was doing when it failed, by a line that it writes after another complaint."""
    return _unsure(
        next((key for pattern, key in steps if _search(pattern, line.forms[-1], retyped=line.retyped)), None)
    )


def _unsure(key: str | None) -> Finding | None:
    return msgspec.structs.replace(CAUSE_BY_KEY[key], sure=False).finding() if key else None


def _place(log: str, told: _Line) -> Place | None:
    """What the writer of that line said last of a process, a descriptor and a path."""
    writer = _writer(told.text)
    place = Place(int(writer)) if writer else None
    names: dict[int, str] = {}
    begun = False
    for line in _placed(log, told.begin):
        if _writer(line) != writer:
            continue
        said = _TIME.sub("", line, count=1)
        if found := _PROCESS.match(said):
            pid = int(found[1])
            names[pid] = found[2] or names.get(pid, "")
            place, begun = Place(pid, names[pid]), True
        elif said.endswith(_RULE):
            # One stands below the title of what is done with a process, and one at its end.
            place, begun = place if begun else None, False
        elif place:
            place = _moved(place, said)
    if writer:
        of_writer = (line for line in _lines_after(log, told.end) if _writer(line) == writer)
        if found := _NOT_OPENED.search("\n".join(islice(of_writer, _SAID_AFTER))):
            return Place(int(writer), fd=int(found[1]))
    if place and place.fd is None and _OF_FILES not in told.text:
        # The path of a mapping that was well: CRIU was at the next one.
        return Place(place.pid, place.comm)
    return place


def _placed(log: str, before: int) -> Iterator[str]:
    """The lines before that position that say where CRIU is."""
    end = max(0, before - _FARTHEST)
    while found := _PLACED.search(log, end, before):
        line = _line_at(log, found.start(), end)
        end = line.end
        yield line.text


def _lines_after(log: str, position: int) -> list[str]:
    return log[position : position + _AFTER].splitlines()[1:]


def _outside_end(log: str, told: _Line) -> int:
    before = log[max(0, told.begin - _AFTER) : told.begin].splitlines()
    found = (_OUTSIDE_END.search(line) for line in reversed(before[-_LONGEST_AGO:]))
    return next((int(outside[1]) for outside in found if outside), 0)


def _writer(line: str) -> str:
    found = _WRITER.match(line)
    return found[1] if found else ""


def _moved(place: Place, said: str) -> Place | None:
    """Where CRIU is after it has said that."""
    if _PROCESS_DONE.match(said):
        return None
    if found := _DESCRIPTOR.match(said):
        return Place(place.pid, place.comm, int(found[1]))
    if found := _PATH.match(said):
        fd = int(found[1])
        return Place(place.pid, place.comm, fd if fd >= 0 else None, found[2])
    return place
