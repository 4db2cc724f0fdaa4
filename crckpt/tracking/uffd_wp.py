"""Tracking by asynchronous write protection: a userfaultfd of each process, made in it and held by us.

CRIU, which asks for soft-dirty, gets its answers through `preload.c`, and only CRIU resets bits, while the tree is
frozen. What we have not registered reads as written: whatever is missed here costs bytes, never a page.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from crckpt.errors import HostCannot
from crckpt.host.process.userfaultfd import Taken, close_in, userfaultfds
from crckpt.host.syscalls import pagemap
from crckpt.tracking import unseen
from crckpt.tracking.preload import library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME: Final = "uffd-wp"
_REPLACED: Final = "the program was replaced (exec)"


class UffdWp:
    """The method for kernels without soft-dirty, from 6.7 on."""

    name = NAME

    def __init__(self) -> None:
        """Nothing is attached."""
        self._made: list[pagemap.WriteProtection] = []

    def attach(self, pids: Iterable[int]) -> dict[int, Protected | str]:
        """What each process is held by, or why it is not."""
        wanted = tuple(pids)
        self._close_inherited(wanted)
        held: dict[int, Protected | str] = {
            pid: unseen.OWN_USERFAULTFD for pid in wanted if unseen.userfaultfds_of(pid)
        }
        others = [pid for pid in wanted if pid not in held]
        return held | {taken.pid: self._attached(taken) for taken in userfaultfds(others)}

    def _close_inherited(self, pids: Iterable[int]) -> None:
        """A child that was forked by another thread at the moment when its parent held ours has it too."""
        close_in({pid: descriptor for pid in pids for descriptor in self._ours_in(pid)})

    def is_left_in(self, pid: int) -> bool:
        """Whether it is such a child."""
        return bool(self._ours_in(pid))

    def _ours_in(self, pid: int) -> tuple[int, ...]:
        found = unseen.userfaultfds_of(pid)
        return tuple(number for number in found if any(one.is_held_by(pid, number) for one in self._made))

    def _attached(self, taken: Taken) -> Protected | str:
        if taken.descriptor < 0:
            why = taken.why or "there is no descriptor left to hold it by (RLIMIT_NOFILE)"
            return f"{why} ({taken.hint})" if taken.hint else why
        try:
            protection = pagemap.WriteProtection(taken.descriptor)
        except HostCannot as error:
            return error.message
        held = Protected(taken.pid, protection)
        self._made = [one for one in self._made if one.is_open] + [protection]
        why, _ = held.caught_up()
        if why:
            held.close()
        return why or held

    def environment(self, criu: Path) -> Mapping[str, str]:
        """CRIU gets our preload library."""
        return library.environment(criu, NAME)

    def written(self, pid: int) -> NDArray[np.uint64]:
        """As `pagemap.written`."""
        return pagemap.written(pid, pagemap.private_anonymous(pid))


class Protected:
    """A process whose maps are registered with its userfaultfd, which we hold."""

    def __init__(self, pid: int, protection: pagemap.WriteProtection) -> None:
        """Nothing is registered yet."""
        self._pid = pid
        self._protection = protection

    def follow(self) -> str:
        """Register what was mapped since; why the process can be followed no longer, or nothing."""
        if unseen.userfaultfds_of(self._pid):
            return unseen.OWN_USERFAULTFD
        why, old = self.caught_up()
        # Its stack at least is a map that it keeps.
        return why or ("" if old else _REPLACED)

    def caught_up(self) -> tuple[str, int]:
        """Register what is not; why the process cannot be followed, or nothing, and how many maps were registered."""
        try:
            return "", self.register()
        except OSError as error:
            if error.errno != errno.EBUSY:
                return f"it has ended: {error.strerror}", 0
            own = unseen.userfaultfds_of(self._pid)
            return unseen.OWN_USERFAULTFD if own else unseen.FOREIGN_USERFAULTFD, 0

    def register(self) -> int:
        """Register every map that is not; how many were. Raises OSError: EBUSY if one is somebody else's."""
        old = 0
        with Path(f"/proc/{self._pid}/pagemap").open("rb", buffering=0) as file:
            # With its room: one that has grown since it was listed would be split where it ended. The program could
            # not move or grow it as a whole (mremap) any more.
            for one in pagemap.private_anonymous(self._pid, with_room=True):
                is_old = pagemap.is_registered(file.fileno(), one)
                old += is_old
                # Of an old one a page tells whether the protection is somebody else's. Not all of it: what was moved to
                # its end a moment ago would come with its bits.
                self._register(
                    pagemap.AddressRange(one.start, one.start + mmap.PAGESIZE) if is_old else one, is_new=not is_old
                )
            # Where a file was mapped after the maps were listed, what is written and dropped would leave its mark.
            for one in pagemap.others(self._pid):
                if pagemap.is_registered(file.fileno(), one):
                    self._register(one, is_new=False)  # or it is somebody else's
                    self._unregister(one)
        return old

    def close(self) -> None:
        """Track it no longer."""
        self._protection.close()

    def _register(self, one: pagemap.AddressRange, *, is_new: bool) -> None:
        # If it cannot be tracked all of it counts as written.
        with _gone_or_refused():
            self._protection.register(one, is_new=is_new)

    def _unregister(self, one: pagemap.AddressRange) -> None:
        with _gone_or_refused():
            self._protection.unregister(one)


@contextmanager
def _gone_or_refused() -> Iterator[None]:
    """What is not there any more, or cannot be tracked, is left as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EINVAL, errno.ENOENT, errno.ESRCH, errno.EPERM):
            raise
