r"""Read the tables of causes, the files `*.txt` in `messages`. Pure.

    # A reason, or a source.
    ${words}: text that several causes of this file write as ${words}

    [section] Title of a section of docs/reference/causes.md
    key (source): what the cause says
      remedy: what to do
      pattern: a regular expression for what the source writes to the log

The fields are those of `Cause`. A line that is indented by four blanks continues the one before: after a blank, or in
a regular expression after nothing. A cause that says `most likely: ` is not sure. `fixed` is the release that has the
cause no more, and `{fixed}` stands for it. Nothing is quoted or escaped: the expressions are full of quotes and `\`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from crckpt.causes.finding import LIKELY, Cause

_EXPRESSIONS: Final = frozenset({"pattern", "area", "wide_area", "step", "last_step"})


class Section(NamedTuple):
    """Causes of one subject, or causes that count in the same cases."""

    name: str
    title: str
    causes: tuple[Cause, ...]


def read_tables() -> Iterator[Section]:
    """Read all tables."""
    for path in sorted((Path(__file__).parent / "messages").glob("*.txt")):
        yield from parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> Iterator[Section]:
    """Parse a table; raise TypeError or ValueError if it is not valid."""
    head, bracket, body = f"\n{text}".partition("\n[")
    for begin, _ in _split(head):
        use, _, words = begin.partition(": ")
        if not use.startswith("${"):
            raise ValueError(f"before the first section: {begin}")
        body = body.replace(use, words)
    if "${" in body:
        raise ValueError("shared words are not defined before the first section")
    sections: list[tuple[str, str, list[Cause]]] = []
    for begin, fields in _split(f"{bracket}{body}"):
        if begin.startswith("["):
            name, _, title = begin[1:].partition("] ")
            sections.append((name, title, []))
        else:
            fields["section"] = sections[-1][0]
            sections[-1][2].append(_make_cause(begin, fields))
    for name, title, causes in sections:
        yield Section(name, title, tuple(causes))


def _split(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the line that begins an entry, and the fields that follow it."""
    entry: dict[str, str] = {"": ""}
    name = ""
    for line in text.splitlines():
        if line.startswith("    "):
            entry[name] += line[4:] if name in _EXPRESSIONS else line[3:]
        elif not line or line.startswith(("#", "  #")):
            continue
        elif line.startswith("  "):
            name, _, value = line[2:].partition(": ")
            if name in entry or not value:
                raise ValueError(f"not a field, or a field twice: {line}")
            entry[name] = value
        else:
            if entry[""]:
                yield entry.pop(""), entry
            name, entry = "", {"": line}
    if entry[""]:
        yield entry.pop(""), entry


def _make_cause(begin: str, fields: dict[str, str]) -> Cause:
    head, _, says = begin.partition(": ")
    key, _, source = head.partition(" (")
    if not says:
        raise ValueError(f"not a cause: {begin}")
    release = fields.pop("fixed", "").partition(" ")[0]
    if release:
        says, fields["remedy"] = (text.replace("{fixed}", release) for text in (says, fields["remedy"]))
    return Cause(
        key,
        says.removeprefix(LIKELY),
        source=source.removesuffix(")"),
        sure=not says.startswith(LIKELY),
        fixed=tuple(map(int, release.split("."))) if release else (),
        instead_of=tuple(fields.pop("instead_of", "").split()),
        **fields,
    )
