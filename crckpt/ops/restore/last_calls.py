"""What CRIU's preload library does last in a restored tree, when it has no code of CRIU any more (last_calls.c).

CRIU would set the dumpable flag and restartable sequences while threads still are root and run CRIU's code, and the
program's user would control these by them.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.images.mm import DUMPABLE_BY_USER, VDSO
from crckpt.images.tree import ImageTree
from crckpt.tracking.preload.library import makes_last_calls

_NAME: Final = "last-calls"
# The library maps it before we know how much is needed: there can be no more threads than 2^22. It stays sparse.
_MOST: Final = 1 << 22
# How far the library is: it writes this word.
_STATE: Final = struct.Struct("=I")
_NOT_LOADED, _LOADED, _DONE = range(3)
_COUNT: Final = struct.Struct("=I")
_RECORD: Final = struct.Struct("=IIQQII")


class LastCalls:
    """The file by which the library knows which calls to make, in the directory of CRIU's run."""

    def __init__(self, work: Path) -> None:
        self.path: Final = work / _NAME

    def create(self) -> None:
        """Create the file, before CRIU starts; it says nothing yet."""
        self.path.touch(0o600, exist_ok=False)
        os.truncate(self.path, _STATE.size + _COUNT.size + _MOST * _RECORD.size)

    def write(self, tree: ImageTree) -> None:
        """Write what each thread of the tree needs, before CRIU makes any."""
        records = []
        for process in tree.processes:
            if process.memory is None:
                continue
            vdso = next((vma.start for vma in process.memory.vmas if vma.status & VDSO), 0)
            for thread in process.threads:
                area, size, signature = thread.core.rseq
                # The flag is that of the whole process.
                is_dumpable = thread is process.threads[0] and process.memory.dumpable == DUMPABLE_BY_USER
                if area or is_dumpable:
                    records.append((thread.tid, is_dumpable, vdso, area, size, signature))
        content = b"".join(_RECORD.pack(*record) for record in sorted(records))
        with self.path.open("r+b") as file:
            file.seek(_STATE.size)
            file.write(_COUNT.pack(len(records)) + content)

    def check_loaded(self) -> None:
        """In the hold: raise RestoreFailed if this CRIU does not load the library, which the tree needs."""
        self._check(_LOADED, "load crckpt's preload library")

    def check_done(self) -> None:
        """Raise RestoreFailed if CRIU has let the tree run and the library has not made the calls."""
        self._check(_DONE, "use crckpt's preload library")

    def _check(self, wanted: int, what: str) -> None:
        if not makes_last_calls():
            return
        with self.path.open("rb") as file:
            (state,) = _STATE.unpack(file.read(_STATE.size))
        if state < wanted:
            raise RestoreFailed(
                f"this CRIU does not {what}, and the program would lack its restartable sequences",
                state=NOTHING_LEFT,
                hint="install a CRIU that does: crckpt install-criu",
            )
