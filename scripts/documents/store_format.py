"""The format of the store: the docstring of `crckpt.store`, as Markdown."""

from __future__ import annotations

import re
from inspect import cleandoc

from crckpt import store


def store_format() -> str:
    """Convert the docstring: its first words become headings, its indented blocks become literal."""
    paragraphs = cleandoc(store.__doc__ or "").split("\n\n")
    return "\n\n".join(map(_convert, paragraphs)) + "\n"


def _convert(paragraph: str) -> str:
    if paragraph.startswith("    "):
        return f"```text\n{cleandoc(paragraph)}\n```"
    text = paragraph.replace("::", ":")
    heading, stop, rest = text.partition(". ")
    if stop and re.fullmatch(r"[A-Z][a-z]+( [a-z]+){0,2}", heading):
        return f"## {heading}\n\n{rest}"
    return text
