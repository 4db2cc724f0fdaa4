"""Track by the kernel's soft-dirty bits, as CRIU uses them. Only CRIU resets bits, while the tree is frozen."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from crckpt.host.proc.status import read_bytes
from crckpt.host.syscalls import memory_trials, pagemap
from crckpt.tracking.preload import library
from crckpt.tracking.refusals import (
    EXECUTED,
    HUGE_PAGES,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SoftDirty:
    """The method for kernels with CONFIG_MEM_SOFT_DIRTY.

    The kernel loses the bits of hugetlb pages. `misses_huge`: this CRIU does not know that, and would leave out what
    was written there.
    """

    name: Final = "soft-dirty"

    def __init__(self, *, misses_huge: bool = False) -> None:
        self._misses_huge = misses_huge

    def attach(self, pids: Iterable[int]) -> dict[int, PagemapAttachment | str]:
        """Open each process's page map. Return the attachment of each, or why there is none."""
        found: dict[int, PagemapAttachment | str] = {}
        for pid in pids:
            try:
                attachment = PagemapAttachment(pid, misses_huge=self._misses_huge)
            # A process that is about to end has no maps any more: IndexError.
            except (OSError, IndexError):
                found[pid] = "it has ended"
                continue
            why = attachment.catch_up()
            if why:
                attachment.close()
            found[pid] = why or attachment
        return found

    def environment(self, criu: Path) -> Mapping[str, str]:
        """Load the preload library."""
        # It stops CRIU before its first reset, and finds writes without a bit (frames.c).
        joined = {} if memory_trials.soft_dirty_misses_joined() else {"CRCKPT_JOINED_ARE_DIRTY": "1"}
        return {**library.environment(criu, self.name), **joined}

    def is_left_in(self, _pid: int) -> bool:
        """Return False: this method leaves nothing in a process."""
        return False

    def find_written(self, pid: int) -> NDArray[np.uint64]:
        """As `pagemap.find_soft_dirty`."""
        return pagemap.find_soft_dirty(pid, pagemap.private_anonymous(pid))


class PagemapAttachment:
    """The attachment to a process: the page map of the memory that it has now."""

    def __init__(self, pid: int, *, misses_huge: bool = False) -> None:
        """Raises OSError if it has ended. `misses_huge` as of `SoftDirty`."""
        self._pid, self._misses_huge = pid, misses_huge
        place = pagemap.private_anonymous(pid)[0].start
        self._pagemap = Path(f"/proc/{pid}/pagemap").open("rb", buffering=0)  # noqa: SIM115
        self._pagemap.seek(place // mmap.PAGESIZE * 8)

    def catch_up(self) -> str:
        """Return why the process can no longer be tracked, or an empty string."""
        here = self._pagemap.tell()
        entry = self._pagemap.read(8)
        self._pagemap.seek(here)
        # After an exec the page map of the old memory is empty.
        if not entry:
            return EXECUTED
        return HUGE_PAGES if self._misses_huge and read_bytes(self._pid, "HugetlbPages") else ""

    def close(self) -> None:
        """Close the page map."""
        self._pagemap.close()
