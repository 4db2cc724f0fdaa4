"""Find out from the log of a dump when CRIU froze the tree."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.criu.engine import read_log

# Seconds since CRIU was started.
_FROZEN: Final = re.compile(r"^\((\d+\.\d+)\) Seized task ", re.MULTILINE)
_LINE: Final = re.compile(r"^\((\d+\.\d+)\) ", re.MULTILINE)


def find_freeze(log: Path, earliest: float) -> float:
    """Return when CRIU began to freeze the tree, as time.monotonic(); `earliest` if the log does not tell.

    The log was written last by a CRIU that waits now.
    """
    with suppress(OSError):
        text = read_log(log)
        frozen, lines = _FROZEN.search(text), _LINE.findall(text)
        if frozen is not None:
            last = time.monotonic() - (time.time() - log.stat().st_mtime)
            return max(earliest, last - (float(lines[-1]) - float(frozen[1])))
    return earliest
