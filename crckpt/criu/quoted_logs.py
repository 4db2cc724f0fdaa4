"""Undo what people and programs do to CRIU's lines when they pass them on: wrap, quote, retype. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import cache

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
