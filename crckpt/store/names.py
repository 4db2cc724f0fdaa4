"""The form of jobs, tags, ids and image names. Pure."""

from __future__ import annotations

import re
from typing import Final

from crckpt.errors import IntegrityError, UsageError

# Part of a path, and typed as an argument: no slash, and neither a dot nor a hyphen at the start.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A job or a tag."""

ID: Final = re.compile(r"[0-9a-f]{64}")
"""A checkpoint's id or a pack's digest: a SHA-256."""

IMAGE: Final = re.compile(r"(?!\.{1,2}\Z)[^/\x00-\x1f\x7f]{1,255}")
"""An image file: a name in one directory."""

# C0 and C1 controls, DEL, and the separators of lines and paragraphs: `list` and `show` print a note on one line.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

SHORT: Final = 12
"""Digits of an id in messages."""


def check_name(name: str, what: str) -> str:
    """Return `name` if it is a valid name of a job or tag (`what`). Raises UsageError."""
    if NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{name!r} is not a valid {what} name",
        hint="use at most 100 letters, digits, '.', '_' and '-'; begin with a letter or digit",
    )


def check_note(note: str) -> str:
    """Return `note` if it is one line of text. Raises UsageError."""
    if _CONTROL.search(note) is None:
        return note
    raise UsageError(
        f"--note: {note!r} is not one line of text", hint="leave out line breaks, tabs and control characters"
    )


def check_id(name: str) -> str:
    """Return `name` if it is an id or a digest, and so may be a part of a path. Raises IntegrityError."""
    # A manifest from elsewhere may have a path for a digest: `verify` once deleted the file to which one led.
    if ID.fullmatch(name):
        return name
    raise IntegrityError(f"{name[:SHORT]!r} is not a SHA-256")
