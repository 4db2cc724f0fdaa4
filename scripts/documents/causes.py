"""The page of causes: each with its sentence, its remedy and an anchor, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from crckpt.causes import Cause
from crckpt.causes.catalogue import SECTIONS
from crckpt.causes.table import Section

_GAP = re.compile(r"\{(\w+)(?:![ars])?(?:\|([^}]*))?\}")
_NAMELESS = "(not named)"
_NOT_CAPITALIZED = ("clone3", "crckpt", "criu", "cuda-checkpoint", "fd ", "iptables", "nftables")
_MARKUP = re.compile(r"([*_<>`#\[\]|\\])")


def causes() -> str:
    """Make a section for each one of the catalogue, with a heading for each cause."""
    return "\n\n".join(part for section in SECTIONS.values() for part in _describe(section)) + "\n"


def _describe(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    for cause in section.causes:
        yield f"### {cause.key}"
        yield _sentence(cause)
        if cause.remedy:
            yield f"**Remedy:** {_fill(cause.remedy)}."
        if cause.by_criu:
            yield f"**With criu alone:** {_fill(cause.by_criu)}."


def _sentence(cause: Cause) -> str:
    text = _fill(cause.says)
    sure = "" if cause.sure else " (The most likely cause: CRIU prints the same message in other cases.)"
    release = ".".join(map(str, cause.fixed))
    fixed = f" Fixed in CRIU {release}." if release and release not in text else ""
    first = text[0] if text.startswith(_NOT_CAPITALIZED) else text[0].upper()
    return f"{first}{text[1:]}.{sure}{fixed}"


def _fill(template: str) -> str:
    """Show what differs from case to case in italics; escape what Markdown would read as its own."""
    end, text = 0, ""
    for gap in _GAP.finditer(template):
        between = template[end : gap.start()]
        # The value begins with a space or a semicolon, or is empty.
        text += _escape(between) if between or not text or gap[2] == "" or (gap[2] or "").startswith(";") else " "
        text += f"*{gap[1].upper()}*" if gap[2] in (None, _NAMELESS) else _escape(gap[2])
        end = gap.end()
    return text + _escape(template[end:])


def _escape(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text.replace("{{", "{").replace("}}", "}"))
