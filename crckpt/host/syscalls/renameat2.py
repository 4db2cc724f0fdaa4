"""Rename without replacing what another process has put there meanwhile. Source: renameat2(2)."""

from __future__ import annotations

import os
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2


def rename_within(directory: int, old: str, new: str, flags: int) -> None:
    """Rename a file in an open directory. Raises OSError."""
    check(LIBC.renameat2(directory, os.fsencode(old), directory, os.fsencode(new), flags), new)
