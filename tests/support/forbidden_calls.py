"""Code for a program that tries what it may not do."""

from __future__ import annotations

from typing import Final

TRIED_FUNCTION: Final = """
def tried(action, *words, **more):
    try:
        action(*words, **more)
    except OSError as error:
        return error.errno
    return 0
"""
"""`tried` gives the number of the error, or 0."""
