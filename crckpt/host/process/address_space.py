"""Report too little address space before numpy is loaded, which would end the process.

Under a limit of address space (`ulimit -v`) numpy's library for linear algebra prints a line and exits, or the loader
fails and Python raises ImportError.
"""

from __future__ import annotations

import errno
import resource
import sys
from pathlib import Path
from typing import Final

_LARGE: Final = "numpy"
# Bytes of address space that numpy takes (2.3 on x86-64), with a margin.
_NEEDED: Final = 80 << 20
# An ImportError has no errno, so look for the texts of the C library's loader.
_SAID: Final = ("failed to map segment", "Cannot allocate memory", "cannot allocate", "out of memory")


class _RefuseLarge:
    """A finder (`sys.meta_path`) that raises MemoryError for a large library that does not fit in memory."""

    # importlib.abc, which has the base class, takes 8 ms to import.
    @classmethod
    def find_spec(cls, fullname: str, _path: object, _target: object = None) -> None:
        """Find nothing: the next finder finds the module."""
        if fullname == _LARGE and _left() < _NEEDED:
            raise MemoryError


def refuse_large_imports() -> None:
    """Let an import that does not fit raise MemoryError. Do nothing if address space is not limited."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        sys.meta_path.insert(0, _RefuseLarge)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error, or one of its causes, is a lack of memory."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MemoryError) or (isinstance(found, OSError) and found.errno == errno.ENOMEM):
            return True
        if isinstance(found, ImportError) and any(words in str(found) for words in _SAID):
            return True
        found = found.__cause__ or found.__context__
    return False


def _left() -> int:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return limit - used
