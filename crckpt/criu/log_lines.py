"""Extract the lines of CRIU's log that may tell why it failed, in the forms that causes match. Pure.

First that undoes what people and programs do to the lines when they pass them on: wrap, quote, retype.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from typing import NamedTuple

from crckpt.causes.catalogue import ENGINES, OUTER, OUTSIDE

# A line of JSON, or of an engine that quotes another's; CRIU's own begin with a time, and may have such in a path.
_QUOTED = re.compile(r"^(?!\(\d)[^\n]{0,20000}\\[nt\"/u][^\n]*", re.MULTILINE)
_ESCAPED = re.compile(r"\\{1,3}(n|t|r|\"|/|u(?:00)[23][0-9a-fA-F]|u201[89cdCD])")
_MEANT = {"n": "\n\n", "t": "\t", "r": "", '"': '"', "/": "/"}
_ENTITY = re.compile(r"&(?:#\d{1,3}|#x[0-9a-f]{1,2}|quot|apos|gt|lt|amp);")
# Characters, and those to the end of a line.
_PART = 1 << 20
_TYPOGRAPHIC = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "`": "'", "\u00a0": " "})
_BLANKS = re.compile(r"[ \t]{2,}")
# How a line begins that does not go on with the one before.
_NEW = re.compile(
    r"\s*(?:b['\"]|['\"][\s,}\]]|line \d|\(\d[\d.]*\) |\[\d{1,6}[.:-]"
    r"|\d{1,10}(?:: | killed | exited| stopped )|\d{4}-\d\d|\d\d?:\d\d|[$#>] "
    r"|[-=#+*`|]{2}|time=|level=|\.{3}"
    r"|(?:Error|Warn|Debug|pie|criu|tar|ip6?tables(?:-restore)?|iptables-save)\b(?:\s{1,2}\(|: ))"
)
# The same, where it may not have been cut at the width of a terminal: not what the kernel answers, nor advice.
_BEGUN = re.compile(
    r"\s*(?:(?!No such|No space|Operation|Permission|Invalid|Device|Resource|Connection|Too many|Read-only|Bad "
    r"|Cannot a|Function|File exists|File too|Address|Input|Inappropriate|Not |Is a |Text|Broken|Interrupted"
    r"|Use |Try |Consider|Success|Numerical|Protocol|Socket type|Stale|Transport|Network is|Disk|Out of memory"
    r"|File r/w)[A-Z][a-z']"
    r"|(?:mnt(?:-v2)?|unix|tty|inet|cg|uns|net|sockets|fsnotify|epoll|page-xfer|pagemap-cache|netlink|uffd|tls|tcp"
    r"|seccomp|vdso|cpu|x86|rseq|lsm|packet|\w{1,12}_plugin): |`-)"
)
_TIMED = re.compile(r"\(\d[\d.]{1,20}\)")
# What only a new line has: the place in CRIU's source.
_NAMED = re.compile(r"[\w-]\.[ch]:\d{1,6}\): ")
_ANSWER = re.compile(
    r": (?:No such (?:file|device|process)|(?:Operation|Function) not|Permission denied|Read-only file|Invalid argument"
    r"|No space left|Too many|Device or resource|Cannot allocate|Connection refused|Address already|Bad address)"
)
_LONGEST_FORM = 1000
_MOST_GONE_ON = 3
_WIDTHS = (79, 80, 100, 120, 132)
_NOT = re.compile(r"(?:^|(?<=[ :]))([Cc]a|[Dd]oes|[Ii]s|[Cc]ould|[Dd]id|[Dd]o)nt (?=[a-z])")
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[Cc]an't |['\"$]", re.DOTALL)
# What is said after a line that stands in a sentence or a table.
_END = r"(?=[\"'*;|<\\]|[.,](?:\s|$)|\s*\||$)"
_TAG = re.compile(r"</?[a-z]{1,10} ?/?>")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,10}m")


def unquote(text: str) -> str:
    """The text, with the lines that a program quoted (as JSON does) as they were, and an empty one after each."""
    has_entities = "&#" in text or "&quot;" in text
    if not (has_entities or "\\" in text or "n\u2019t " in text):
        return text

    def unquote_part(part: str) -> str:
        part = part.replace("n\u2019t ", "n't ")
        if has_entities:
            part = _ENTITY.sub(lambda entity: html.unescape(entity[0]), part)
        return _QUOTED.sub(lambda line: _ESCAPED.sub(_meant, line[0]), part) if "\\" in part else part

    # A substitution needs twice the memory of its text: of one part (whole lines) at a time that is little.
    parts, begin = [], 0
    while begin < len(text):
        end = text.find("\n", begin + _PART) + 1 or len(text)
        parts.append(unquote_part(text[begin:end]))
        begin = end
    return "".join(parts)


def _meant(escaped: re.Match[str]) -> str:
    code = escaped[1]
    return _MEANT.get(code) or ("" if code == "r" else chr(int(code[1:], 16)))


def join_lines(first: str, following: Iterator[str]) -> tuple[str, ...]:
    """A line with those that go on with it, the longest first; then it alone.

    It may be broken between words or, at the width of a terminal, anywhere.
    """
    forms: list[str] = [first]
    between, anywhere = first.rstrip(), first
    cut = len(first) in _WIDTHS
    for _, line in zip(range(_MOST_GONE_ON), following, strict=False):
        is_new = _NAMED.search(line) or _TIMED.match(line) or (not cut and (_NEW.match(line) or _BEGUN.match(line)))
        if is_new or not line.strip() or len(between) + len(line) > _LONGEST_FORM:
            break
        between = f"{between} {line.strip()}"
        anywhere += line if cut else line.strip()
        is_cut = cut and (_ANSWER.search(anywhere) or not _ANSWER.search(between))
        forms += (between, anywhere) if is_cut else (anywhere, between)
    return tuple(_NOT.sub(r"\1n't ", form) for form in dict.fromkeys(reversed(forms)))


def tidy(line: str) -> str:
    """The line with plain quotes and single blanks, without what quotes it."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if "<" in line:
        line = _TAG.sub("", line)
    return _BLANKS.sub(" ", line.translate(_TYPOGRAPHIC)).strip(" '\"`,;}\\\t\r")


@cache
def loosen(pattern: str) -> re.Pattern[str]:
    """The pattern, for lines that are retyped: with any case, and with or without quotes."""

    def loose(found: re.Match[str]) -> str:
        piece = found[0]
        if piece == "$":
            return _END
        if piece.lower() == "can't ":
            return "Can(?:'?t|not) "
        return f"{piece}?" if piece in {"'", '"', "\\'", '\\"'} else piece

    return re.compile(_PIECE.sub(loose, pattern), re.IGNORECASE)


# Lines that CRIU also writes in good runs: the last three do no harm, are tried again, or matter only where such a
# socket is met.
_HARMLESS = re.compile(
    r"Can't setup RLIMIT_NOFILE|tun: Unable to create tun|nftables: .*not supported"
    r'|execvp\("ip6?tables|ip6?tables(?:-legacy)?-(?:save|restore) -V failed'
    r"|Unable to create the binfmt_misc file system(?!.*criu swrk failed)"
    r"|zombie \d+ \(comm .*\) found while seizing|Diag module missing"
)
# Without names: a pattern may have a group of a name only once.
_UNNAMED = tuple(re.sub(r"\(\?P<\w+>", "(?:", engine.pattern) for engine in (*OUTSIDE, *ENGINES, *OUTER))
# CRIU only warns of a task that refuses to be traced. What CRIU writes before its log is open has no "Error (", nor has
# what other programs write; people often leave out the word when they copy.
TELLING = re.compile(
    r"Error \(|(?<![Ww]arn  )\((?:criu|compel)/[\w./-]{1,60}:\d{1,6}\): |[Uu]nable to interrupt|Can't connect to server"
    "|CRIU needs to have|Running as non-root|BUG at |no answer while|(?:CHAIN|RULE)_[A-Z_]{1,20} failed"
    "|cannot be entered: |the last calls of |has system call filters, and |error while loading shared libraries"
    "|Can't exec criu swrk"
    "|criu: (?:unrecognized|invalid) option"
    # CRIU's own lines, of which a log has many, begin with a time, and those of others do not.
    rf"|^(?!\(\d)[^\n]*?(?:{'|'.join(_UNNAMED)})",
    re.MULTILINE,
)
# runc writes the path of CRIU's log on a line of its own.
_LOG_PATH = re.compile(r"\n\n?(?=log file: )")
_ENGINE = re.compile("|".join(_UNNAMED))
# Lines without CRIU's prefix: people leave it out.
_PLAIN = re.compile(r"^(?!\(\d)[^\n]+|^[^\n]{0,60}\b[Ee]rror(?:: |[ \t]{1,4}\()[^\n]*", re.MULTILINE)
_WARNING = re.compile(r"\b[Ww]arn {1,2}\(")
# Different lines of that kind that are looked up: the last ones.
_MOST_PLAIN = 100
# Characters of such a line that are searched.
_LONGEST_RETYPED = 400
# Complaints whose next lines may continue them.
_MOST_BROKEN = 50
_NO_IPTABLES = 'execvp("iptables-restore"'
_NEAR = 400
# CRIU writes these after another complaint: such a line is a cause only where there is no other complaint.
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
# Characters of the begin and the end of a line that are searched: no pattern takes long for so few.
_LONGEST_BEGIN, _LONGEST_END = 700, 300
# Different lines that are looked up in the catalogue: a log with more of them is not CRIU's.
_MOST_LINES = 500
_MOST_COMPLAINTS = 200_000
TIME = re.compile(r"^\([\d.]{1,20}\) {0,8}", re.MULTILINE)
# The restorer has a small buffer for a line: before CRIU 3.16 it cut longer ones in pieces.
_CUT = re.compile(r">\n(?:\([\d.]{1,20}\) ?)?pie: (?:\d{1,10}: )?")
# People copy lines that a terminal broke; CRIU begins each of its own with a time, a number or a word.
_WRAPPED = re.compile(r"(Error \([^\n]{1,300})\n {2,8}(?=[/a-z])")


class Line(NamedTuple):
    """A line of a log, shortened, and where in the log it begins and ends.

    `forms` are the texts to look it up by: joined with the next lines if these seem to continue it, and alone.
    """

    text: str
    begin: int
    end: int
    forms: tuple[str, ...] = ()
    retyped: bool = False


def rejoin_lines(log: str) -> str:
    """Join the lines that runc, the restorer or a terminal broke."""
    log = _LOG_PATH.sub(" ", log)
    # Twice: a match ends where the second break of the same line would begin.
    return _WRAPPED.sub(r"\1 ", _WRAPPED.sub(r"\1 ", _CUT.sub("", log)))


def find_telling_lines(log: str) -> tuple[Line, ...]:
    """Find the lines that may tell the cause; of those that differ only in their times, the first."""
    found: dict[str, Line] = {}
    end = 0
    for _ in range(_MOST_COMPLAINTS):
        match = TELLING.search(log, end)
        if match is None or len(found) == _MOST_LINES:
            break
        line = line_at(log, match.start(), end)
        end = line.end
        text = TIME.sub("", line.text, count=1)
        # Again in the shortened line: what matched may be in the part that was left out.
        if text not in found and TELLING.search(line.text) and not _is_harmless(log, line):
            found[text] = line
    return tuple(_add_forms(log, found.values()))


class RetypedLines:
    """The telling lines, and those without CRIU's prefix, in forms that tolerate what people change when they copy."""

    def __init__(self, log: str, telling: tuple[Line, ...]) -> None:
        self._log, self._telling = log, telling

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)

    def complaints(self) -> Iterator[Line]:
        """Yield the joined lines that look like CRIU's."""
        known = {line.begin for line in self._telling}
        yield from (line for line in only_joined(self) if line.begin in known and not _is_of_others(line))

    @cached_property
    def _lines(self) -> tuple[Line, ...]:
        known = {line.begin for line in self._telling}
        plain = [line for line in _find_plain(self._log) if line.begin not in known]
        lines = sorted((*self._telling[:_MOST_BROKEN], *_add_forms(self._log, plain)), key=lambda line: line.begin)
        retyped = []
        for line in lines:
            forms = [form for form in line.forms if len(form) <= _LONGEST_RETYPED]
            shown = tuple(map(tidy, forms or [line.forms[-1][:_LONGEST_RETYPED]]))
            retyped.append(line._replace(forms=shown, retyped=True))
        return tuple(retyped)


def only_joined(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines, each to be looked up only with those that continue it."""
    return (line._replace(forms=line.forms[:1]) for line in lines)


def omit_consequences(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines without the consequences of a complaint that no cause fits: they would hide that one."""
    is_unknown = False
    for line in lines:
        follows = is_consequence(line)
        if not (follows and is_unknown):
            yield line
        # A caller takes the first line that it knows: that it asks for the next one means that it knew none so far.
        is_unknown = is_unknown or not (follows or "Warn " in line.text or _is_of_others(line))


def is_consequence(line: Line) -> bool:
    """Return whether CRIU writes this after another complaint."""
    return any(search(_CONSEQUENCE.pattern, form, retyped=line.retyped) for form in line.forms)


def search(pattern: str, text: str, *, retyped: bool) -> re.Match[str] | None:
    """Search a pattern of the catalogue; in `retyped` text, tolerate what people change when they copy."""
    return loosen(pattern).search(text) if retyped else re.search(pattern, text)


def line_at(log: str, position: int, earliest: int) -> Line:
    """Return the line around `position`, which does not begin before `earliest`."""
    begin = log.rfind("\n", earliest, position) + 1 or earliest
    end = log.find("\n", position)
    end = len(log) if end < 0 else end
    if end - begin <= _LONGEST_BEGIN + _LONGEST_END:
        return Line(log[begin:end].rstrip("\r"), begin, end)
    return Line(f"{log[begin : begin + _LONGEST_BEGIN]}...{log[end - _LONGEST_END : end]}", begin, end)


def _find_plain(log: str) -> list[Line]:
    """Find the last different lines without CRIU's prefix."""
    found: dict[str, Line] = {}
    for match in _PLAIN.finditer(log):
        line = line_at(log, match.start(), match.start())
        if _WARNING.search(line.text) or _is_harmless(log, line):
            continue
        # Removed first: it keeps the place of its last occurrence, and the oldest line is dropped below.
        found.pop(line.text, None)
        found[line.text] = line
        if len(found) > _MOST_PLAIN:
            del found[next(iter(found))]
    return list(found.values())


def _add_forms(log: str, lines: Iterable[Line]) -> Iterator[Line]:
    for number, line in enumerate(lines):
        following = _read_lines_after(log, line.end) if number < _MOST_BROKEN else iter(())
        yield line._replace(forms=join_lines(line.text, following))


def _read_lines_after(log: str, end: int) -> Iterator[str]:
    while end < len(log):
        line = line_at(log, end + 1, end + 1)
        yield line.text
        end = line.end


def _is_of_others(line: Line) -> bool:
    # An engine that says that CRIU failed repeats what CRIU itself complained of.
    return not TELLING.search(line.text) or ("Error (" not in line.text and bool(_ENGINE.search(line.text)))


def _is_harmless(log: str, line: Line) -> bool:
    if not _HARMLESS.search(line.text):
        return False
    # A missing iptables counts, unless CRIU only asked for its version.
    return not (_NO_IPTABLES in line.text and "-V failed" not in log[line.end : line.end + _NEAR])
