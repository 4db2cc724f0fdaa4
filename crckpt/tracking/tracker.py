"""Follow a tree from one dump to the next: what the bits count from, and when the next dump must be full.

A round: `begin`, CRIU freezes the tree and dumps, `frozen` before it resets the bits, then `committed` once the
checkpoint is there. Bits that were reset for a dump that came to nothing are lost: the next dump is full.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.syscalls import pagemap
from crckpt.model import PAGE_SIZE
from crckpt.tracking import unseen
from crckpt.tracking.claims import Claims
from crckpt.tracking.preload import library
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.uffd_wp import UffdWp

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_UNKNOWN: Final = (0, 0)
_COPIES_HUGE: Final = (3, 18)
"""The first release of CRIU that copies all huge pages that were set aside, whatever their bits say."""

_CLAIMED: Final = "it is tracked by another crckpt"


class Hold(Protocol):
    """What a method keeps of a process."""

    def follow(self) -> str:
        """Catch up with what it mapped; why it can be followed no longer, or nothing."""

    def close(self) -> None:
        """Let it go."""


class Method(Protocol):
    """A way to know which pages were written."""

    @property
    def name(self) -> str:
        """As it is said to people: soft-dirty or uffd-wp."""

    def environment(self, criu: Path) -> Mapping[str, str]:
        """What to add to CRIU's environment for a dump that tracks."""

    def attach(self, pids: Iterable[int]) -> Mapping[int, Hold | str]:
        """What each process is held by, or why it is not."""

    def is_left_in(self, pid: int) -> bool:
        """Whether a process that is not attached to holds something of ours that it is to be rid of: by attaching."""

    def written(self, pid: int) -> NDArray[np.uint64]:
        """Rows of addresses (start, end) of the pages that count as written. Raises OSError."""


class Whole(Struct, frozen=True):
    """A process all of whose pages count as written, and a clause that names it and says why."""

    pid: int
    why: str


class Round(Struct, frozen=True):
    """How the dump that begins now is to be made.

    `base` names the dump that the bits count from: its page maps are CRIU's parent. Empty: the dump is full, and
    `why` says so in one clause. `tracks`: CRIU is to reset the bits, so that the next dump can count from this one.
    `whole` are processes that have no part in the base.
    """

    base: str
    why: str
    tracks: bool
    whole: tuple[Whole, ...]


class Choice(Struct, frozen=True):
    """The tracker of a tree, or none, and the sentence that says why."""

    tracker: Tracker | None
    why: str


class _Member:
    """A process of the tree, and its hold, or why it has none."""

    def __init__(self, process: proc.Process, hold: Hold | str) -> None:
        self.start = process.start
        self.hold = hold

    def follow(self) -> str:
        """Catch up; why it is not followed, or nothing."""
        if isinstance(self.hold, str):
            return self.hold
        why = self.hold.follow()
        if why:
            self.hold.close()
            self.hold = why
        return why

    def let_go(self) -> None:
        if not isinstance(self.hold, str):
            self.hold.close()


class Tracker:
    """A tree that is followed, until `close`. For one thread."""

    def __init__(self, root: proc.Process, method: Method, claims: Claims) -> None:
        """Takes `claims` over; attaches to nothing yet."""
        self.name = method.name
        self._root = root
        self._method = method
        self._claims = claims
        self._members: dict[int, _Member] = {}
        self._base = ""
        self._why_full = "no dump of this tree has been tracked yet"
        self._spoilt = ""
        self._whole: dict[int, str] = {}
        self._to_be_kept: frozenset[int] = frozenset()
        # What the kernel calls the flags of the tree's maps, as CRIU's preload library learns it (smaps.c).
        self._flags = os.memfd_create("flags")
        # And in which frames its pages were when their soft-dirty bits were reset (frames.c).
        self._frames = os.memfd_create("frames")

    def look(self) -> None:
        """List the tree again, attach to what is new, register what was mapped: at any time, and in each `begin`.

        Raises HostCannot if the tree has ended.
        """
        living = {process.pid: process for process in self._living()}
        for pid in [pid for pid, member in self._members.items() if not _is(member, living.get(pid))]:
            self._forget(pid)
        lost = {pid: why for pid, member in self._members.items() if (why := member.follow())}
        self._whole |= lost
        wanted = [one for pid, one in living.items() if pid in lost or pid not in self._members]
        while wanted:
            self._whole |= dict.fromkeys((one.pid for one in wanted if one.pid not in lost), "the process is new")
            self._whole |= self._attach(wanted)
            # Who was forked while its parent was attached to may hold what that was held by: CRIU would refuse it.
            came = (one for one in self._living() if one.pid not in self._members)
            wanted = [one for one in came if self._method.is_left_in(one.pid)]

    def begin(self) -> Round:
        """Before CRIU is started. From now on the bits are lost unless `committed` follows. Raises HostCannot."""
        self.look()
        self._to_be_kept = frozenset(self._members)
        # One that ended a moment ago could not be entered for that.
        there = {pid: why for pid, why in self._whole.items() if proc.read_process(pid) is not None}
        whole = tuple(Whole(pid, _clause(pid, why)) for pid, why in there.items())
        base, why = self._base, self._why_full
        self._base, self._why_full = "", "the tracker did not see the end of the last dump or round"
        self._spoilt = self._spoiler()
        if self._spoilt:
            self._why_full = self._spoilt
            return Round("", self._spoilt, tracks=False, whole=())
        if base and len(whole) == len(self._members):
            return Round("", whole[0].why, tracks=True, whole=())
        return Round(base, why, tracks=True, whole=whole if base else ())

    def frozen(self) -> None:
        """While CRIU holds the tree frozen: see whether anything came up since that writes unseen."""
        self._spoilt = self._spoilt or self._spoiler()

    def committed(self, name: str) -> None:
        """The dump of this round is kept, as `name`: from now on the bits count from it."""
        self._base, self._why_full = ("", self._spoilt) if self._spoilt else (name, "")
        # Who came after `begin`, or is not held, has no part in it.
        parts = {pid for pid in self._to_be_kept & self._members.keys() if not isinstance(self._members[pid].hold, str)}
        self._whole = {pid: why for pid, why in self._whole.items() if pid not in parts}

    @property
    def base(self) -> str:
        """The dump that the bits count from; empty if the next one is to be full."""
        return self._base

    @property
    def why_full(self) -> str:
        """Why the next dump is to be full, or nothing."""
        return self._why_full

    def refusal(self, *, all_of_it: bool = False) -> str:
        """Why the root is not held, or who of `all_of_it`; or nothing."""
        pids = self._members if all_of_it else (self._root.pid,)
        holds = ((pid, self._members[pid].hold) for pid in pids)
        return next((_clause(pid, hold) for pid, hold in holds if isinstance(hold, str)), "")

    def environment(self, criu: Path) -> Mapping[str, str]:
        """What to add to this CRIU's environment for a dump that `tracks`."""
        ours = f"/proc/{os.getpid()}/fd"
        kept = {"CRCKPT_MAP_FLAGS": f"{ours}/{self._flags}", "CRCKPT_FRAMES": f"{ours}/{self._frames}"}
        return {**self._method.environment(criu), **kept}

    def written(self) -> dict[int, NDArray[np.uint64]]:
        """Of each process what it has written since the base; of one that has ended nothing. Resets nothing."""
        found = {}
        for pid in self._members:
            try:
                found[pid] = self._method.written(pid)
            except OSError:
                continue
        return found

    def close(self) -> None:
        """Let the tree go; nothing is left in it."""
        for pid in tuple(self._members):
            self._forget(pid)
        self._claims.close()
        os.close(self._flags)
        os.close(self._frames)

    def _living(self) -> tuple[proc.Process, ...]:
        root = proc.read_process(self._root.pid)
        if root is None or root.start != self._root.start or root.state in ("zombie", "dead"):
            raise HostCannot(f"PID {self._root.pid} ({self._root.comm}) has ended")
        return tuple(one for one in proc.read_tree(root).processes if one.state not in ("zombie", "dead"))

    def _attach(self, processes: list[proc.Process]) -> dict[int, str]:
        """Attach to these; why not, of those that it failed for."""
        refused = {one.pid: _CLAIMED for one in processes if not self._claims.claim(one.pid, one.start)}
        ours = [one.pid for one in processes if one.pid not in refused]
        held: dict[int, Hold | str] = {**refused, **(self._method.attach(ours) if ours else {})}
        self._members |= {one.pid: _Member(one, held[one.pid]) for one in processes}
        return {pid: hold for pid, hold in held.items() if isinstance(hold, str)}

    def _forget(self, pid: int) -> None:
        member = self._members.pop(pid)
        member.let_go()
        self._whole.pop(pid, None)
        self._claims.give_up(pid, member.start)

    def _spoiler(self) -> str:
        """What makes a reset of the bits wrong, for us or for who else counts on them."""
        for pid, member in self._members.items():
            if member.hold in (_CLAIMED, unseen.OWN_USERFAULTFD, unseen.FOREIGN_USERFAULTFD):
                return _clause(pid, str(member.hold))
        return unseen.writes_unseen(self._members)


def choose(root: proc.Process, criu: Path, claims: Path | None = None) -> Choice:
    """The tracker for the tree below `root` that works here, found by trying. It is attached, and has no base yet.

    `claims` is the file of what is tracked on this host, unless it is to be the host's own.
    """
    refusal = ""
    for method, why, is_last in _methods(criu):
        tracker, refusal = _followed(root, method, claims, all_of_it=not is_last) if method else (None, why)
        if tracker is not None:
            return Choice(tracker, f"tracker: {tracker.name} ({why})")
    return Choice(None, f"tracker: none ({refusal})")


def on_this_host(criu: Path) -> tuple[str, str]:
    """The name of the tracker that works here with this CRIU, and why it; or nothing, and why none does."""
    refusal = ""
    for method, why, _ in _methods(criu):
        if method is not None:
            return method.name, why
        refusal = why
    return "", refusal


def written(name: str, pid: int) -> int:
    """How many pages that are tracked a process has written, by the method of that name. Raises OSError."""
    method = SoftDirty() if name == SoftDirty.name else UffdWp()
    rows = method.written(pid)
    return int((rows[:, 1] - rows[:, 0]).sum()) // PAGE_SIZE


def untracked(name: str, pid: int) -> int:
    """How many private pages of a process count as written whatever it does. Raises OSError."""
    return 0 if name == SoftDirty.name else pagemap.changed_of_files(pid)


def _methods(criu: Path) -> Iterator[tuple[Method | None, str, bool]]:
    """What works here, why it is taken, and whether it is the last; the better first. None if it does not, and why."""
    if not pagemap.tracks_by_soft_dirty():
        yield *_write_protection(criu, "this kernel has no soft-dirty"), True
        return
    if pagemap.soft_dirty_misses_joined():
        why = "this kernel's soft-dirty bits miss what is written where maps have joined"
        yield *_write_protection(criu, why), False
    refusal = library.refusal(criu, SoftDirty.name)
    method = None if refusal else SoftDirty(misses_huge=(library.release_of(criu) or _UNKNOWN) < _COPIES_HUGE)
    yield method, refusal or "the kernel has soft-dirty bits", True


def _write_protection(criu: Path, why: str) -> tuple[Method | None, str]:
    """It, and `why` it is taken; or none, and why not."""
    try:
        works = pagemap.tracks_by_write_protection()
    except HostCannot as error:
        return None, f"{why}, and {error.message}"
    if not works:
        return None, f"{why}, and its write protection does not tell what was written"
    refusal = library.refusal(criu, UffdWp.name)
    return (None, refusal) if refusal else (UffdWp(), why)


def _followed(
    root: proc.Process, method: Method, claims: Path | None, *, all_of_it: bool
) -> tuple[Tracker | None, str]:
    """A tracker that is attached to the tree's root, or to `all_of_it`; or none, and why not."""
    try:
        tracker = Tracker(root, method, Claims(claims))
    except OSError as error:
        return None, f"the file of what is tracked cannot be opened: {error}"
    try:
        tracker.look()
        refusal = tracker.refusal(all_of_it=all_of_it)
    except HostCannot as error:
        refusal = error.message
    if refusal:
        tracker.close()
        return None, refusal
    return tracker, ""


def _is(member: _Member, process: proc.Process | None) -> bool:
    return process is not None and process.start == member.start


def _clause(pid: int, why: str) -> str:
    return why if why.startswith(f"PID {pid} ") else f"PID {pid}: {why}"
