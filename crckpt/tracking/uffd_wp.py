"""Track by asynchronous write protection (userfaultfd).

Each process makes a userfaultfd, which crckpt holds. CRIU asks for soft-dirty bits and gets its answers from the
preload library (written_pages.c). Only CRIU resets the protection, while the tree is frozen. What is not registered
reads as written: a map that is missed here costs bytes, never a page.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from crckpt.errors import HostCannot
from crckpt.helper.calls.remote_calls import OrderResult, close_descriptors, take_userfaultfds
from crckpt.host.syscalls import pagemap, userfaultfd
from crckpt.tracking.preload import library
from crckpt.tracking.refusals import (
    EXECUTED,
    FOREIGN_USERFAULTFD,
    NO_DESCRIPTOR,
    OWN_USERFAULTFD,
    find_userfaultfds,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class UffdWp:
    """The method for kernels without soft-dirty, from 6.7 on."""

    name: Final = "uffd-wp"

    def __init__(
        self,
        take: Callable[[Iterable[int]], Iterable[OrderResult]] = take_userfaultfds,
        protection: type[userfaultfd.WriteProtection] = userfaultfd.WriteProtection,
    ) -> None:
        """Attach to nothing yet. `take` takes a userfaultfd from each process, of which it makes a `protection`."""
        self._take, self._protection = take, protection
        self._made: list[userfaultfd.WriteProtection] = []

    def attach(self, pids: Iterable[int]) -> dict[int, UserfaultfdAttachment | str]:
        """Make a userfaultfd in each process, and take it. Return the attachment of each, or why there is none."""
        wanted = tuple(pids)
        # A child may have inherited one that another thread forked just when its parent held ours.
        close_descriptors({pid: descriptor for pid in wanted for descriptor in self._ours_in(pid)})
        refused: dict[int, UserfaultfdAttachment | str] = {
            pid: OWN_USERFAULTFD for pid in wanted if find_userfaultfds(pid)
        }
        others = [pid for pid in wanted if pid not in refused]
        return refused | {taken.pid: self._attach_to(taken) for taken in self._take(others)}

    def is_left_in(self, pid: int) -> bool:
        """Return whether a process without attachment inherited a userfaultfd that crckpt holds."""
        return bool(self._ours_in(pid))

    def _ours_in(self, pid: int) -> tuple[int, ...]:
        found = find_userfaultfds(pid)
        return tuple(number for number in found if any(one.is_held_by(pid, number) for one in self._made))

    def _attach_to(self, taken: OrderResult) -> UserfaultfdAttachment | str:
        if taken.descriptor < 0:
            why = taken.why or NO_DESCRIPTOR
            return f"{why} ({taken.hint})" if taken.hint else why
        try:
            protection = self._protection(taken.descriptor)
        except HostCannot as error:
            return error.message
        attachment = UserfaultfdAttachment(taken.pid, protection)
        self._made = [one for one in self._made if one.is_open] + [protection]
        why, _ = attachment.register_new()
        if why:
            attachment.close()
        return why or attachment

    def environment(self, criu: Path) -> Mapping[str, str]:
        """Load the preload library, which answers CRIU."""
        return library.environment(criu, self.name)

    def find_written(self, pid: int) -> NDArray[np.uint64]:
        """As `pagemap.find_written`."""
        return pagemap.find_written(pid, pagemap.private_anonymous(pid))


class UserfaultfdAttachment:
    """The attachment to a process: its userfaultfd, with which its maps are registered."""

    def __init__(self, pid: int, protection: userfaultfd.WriteProtection) -> None:
        self._pid = pid
        self._protection = protection

    def catch_up(self) -> str:
        """Register what was mapped since. Return why the process can no longer be tracked, or an empty string."""
        if find_userfaultfds(self._pid):
            return OWN_USERFAULTFD
        why, old = self.register_new()
        # Its stack at least is a map that it keeps.
        return why or ("" if old else EXECUTED)

    def register_new(self) -> tuple[str, int]:
        """Register new maps. Return why that is impossible, or an empty string, and how many were registered before."""
        try:
            return "", self.register()
        except OSError as error:
            if error.errno != errno.EBUSY:
                return f"it has ended: {error.strerror}", 0
            own = find_userfaultfds(self._pid)
            return OWN_USERFAULTFD if own else FOREIGN_USERFAULTFD, 0

    def register(self) -> int:
        """Register new maps. Return how many were registered before. Raises OSError, EBUSY if another has one."""
        old = 0
        # Opened each time: after an exec, a page map that was opened before answers with nothing (seen).
        with Path(f"/proc/{self._pid}/pagemap").open("rb", buffering=0) as file:
            # With the room to grow: a map that has grown since it was listed would be split where it ended, and the
            # program could not move or grow it as a whole (mremap) any more.
            for one in pagemap.private_anonymous(self._pid, with_room=True):
                is_old = pagemap.is_registered(file.fileno(), one)
                old += is_old
                # One page of an old map shows whether the protection is another process's. Registering all of it would
                # keep the bits of what was moved to its end a moment ago.
                self._register(
                    pagemap.AddressRange(one.start, one.start + mmap.PAGESIZE) if is_old else one, is_new=not is_old
                )
            # A file may have been mapped in place of a listed map: pages dropped there would keep their mark.
            for one in pagemap.others(self._pid):
                if pagemap.is_registered(file.fileno(), one):
                    # Fails if it is another process's.
                    self._register(one, is_new=False)
                    with _failure_ignored():
                        self._protection.remove(one.start, one.end)
        return old

    def close(self) -> None:
        """Stop tracking the process."""
        # The kernel unregisters the maps with it: all their pages read as written then.
        self._protection.close()

    def _register(self, one: pagemap.AddressRange, *, is_new: bool) -> None:
        # Where this fails, all of the map counts as written.
        with _failure_ignored():
            self._protection.register(one, is_new=is_new)


@contextmanager
def _failure_ignored() -> Iterator[None]:
    """Ignore a map that is gone or cannot be registered."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EINVAL, errno.ENOENT, errno.ESRCH, errno.EPERM):
            raise
