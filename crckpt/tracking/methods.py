"""The two methods of tracking: the kernel's soft-dirty bits, as CRIU uses them, and asynchronous write protection.

For the second, each process makes a userfaultfd, which crckpt holds. CRIU asks for soft-dirty bits and gets its answers
from the preload library (scan.c). Only CRIU resets bits, while the tree is frozen. What is not registered reads as
written: a map that is missed here costs bytes, never a page.

A tracker is refused by the CRIU, by a process, and by what writes memory unseen; `choose_tracker` refuses by the
kernel.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from crckpt.errors import HostCannot
from crckpt.helper.calls.remote_calls import OrderResult, close_descriptors, take_userfaultfds
from crckpt.host.proc import procfs, status
from crckpt.host.proc.fd import open_flags, read_targets
from crckpt.host.proc.status import read_bytes
from crckpt.host.syscalls import memory_trials, pagemap, userfaultfd
from crckpt.tracking.preload import library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CLAIMED: Final = "it is tracked by another crckpt"
EXECUTED: Final = "the program was replaced (exec)"
HUGE_PAGES: Final = "it has reserved huge pages (hugetlb), where a CRIU before 3.18 misses writes"
NO_DESCRIPTOR: Final = "crckpt has no free descriptor for it (RLIMIT_NOFILE)"
OWN_USERFAULTFD: Final = "memory is managed by the program's own userfaultfd"
FOREIGN_USERFAULTFD: Final = (
    "another process's userfaultfd manages its memory, perhaps that of a lost tracker: crckpt ps"
)
NO_RESET: Final = (CLAIMED, OWN_USERFAULTFD, FOREIGN_USERFAULTFD)
"""The bits of a process that was refused so must not be reset: another one needs them."""

# Through these, a device may write into the memory of the program (DMA).
_DEVICES: Final = ("/dev/infiniband/", "/dev/vfio/", "/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/accel/")
_RINGS: Final = {"[aio]": "an aio ring", "[io_uring]": "an io_uring"}
_MISSED: Final = "crckpt cannot see what the device writes"


def find_criu_refusal(criu: Path, tracker: str) -> str:
    """Return why this CRIU does not track with the preload library, or an empty string."""
    if not library.LIBRARY.exists():
        return library.NO_LIBRARY
    # A kernel that has the bits makes CRIU succeed without the library, too. Only the library refuses an empty name.
    # A CRIU that does without the library, on a kernel that tracks, is refused: it would not stop at the gate.
    if library.NO_TRACKER not in library.check_feature(criu, "").output:
        reason = "it starts without it"
    elif (check := library.check_feature(criu, tracker)).ok:
        return ""
    else:
        reason = (check.output.strip().splitlines() or [f"status {check.status}"])[-1]
    return f"{criu} does not load crckpt's preload library: {reason}"


def find_userfaultfds(pid: int) -> tuple[int, ...]:
    """Find the descriptors by which a program manages its memory itself."""
    # The kernel registers a map with one userfaultfd only (EBUSY), and CRIU refuses a process that has one.
    return tuple(number for number, target in _list_descriptors(pid) if target == "anon_inode:[userfaultfd]")


def find_unseen_writer(pids: Iterable[int]) -> str:
    """Find what writes memory of these processes unseen by every tracker, as a clause; empty if nothing does."""
    # A page that a device was given to write is pinned. If the bits are reset before the device has written it, nothing
    # sets its bit again: the next dump would take the old page for the new one.
    for pid in pids:
        for why in _find_unseen_writers(pid):
            return f"PID {pid} has {why}; {_MISSED}"
    return ""


def _find_unseen_writers(pid: int) -> Iterator[str]:
    with suppress(OSError):
        maps = procfs.text(f"/proc/{pid}/maps")
        yield from (name for mark, name in _RINGS.items() if mark in maps)
    for number, target in _list_descriptors(pid):
        if target == "anon_inode:[io_uring]":
            yield "an io_uring"
        elif target.startswith(_DEVICES):
            yield f"{target} open"
        elif target.startswith("/") and open_flags(pid, number) & os.O_DIRECT:
            yield f"an O_DIRECT descriptor ({number}: {target})"
    # The ring or device that it is pinned for may belong to another process.
    with suppress(OSError):
        if pinned := status.read_bytes(pid, "VmPin"):
            yield f"{pinned >> 10} KiB of memory pinned for a device"


def _list_descriptors(pid: int) -> Iterator[tuple[int, str]]:
    # Number and name only: the tree is frozen meanwhile, and may have many.
    with suppress(OSError):
        yield from read_targets(pid)


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


Attachment: TypeAlias = PagemapAttachment | UserfaultfdAttachment
"""The handle by which a method tracks one process."""
Method: TypeAlias = SoftDirty | UffdWp
"""A way to know which pages were written. Its name is what users see."""


@contextmanager
def _failure_ignored() -> Iterator[None]:
    """Ignore a map that is gone or cannot be registered."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EINVAL, errno.ENOENT, errno.ESRCH, errno.EPERM):
            raise
