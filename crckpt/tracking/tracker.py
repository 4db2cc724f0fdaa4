"""Track a tree from one dump to the next, and decide when the next dump must be full.

A dump or round: `begin`; CRIU freezes the tree; `check_freeze` before it resets the bits; `commit` once the checkpoint
or round is kept. Bits that were reset for a dump that failed are lost: the next dump is full.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.disk.own_files import make_runtime_directory, runtime_directory
from crckpt.host.proc import Identity
from crckpt.tracking import refusals
from crckpt.tracking.dump_basis import Base, DumpBasis, WholeProcess
from crckpt.tracking.soft_dirty import PagemapAttachment, SoftDirty
from crckpt.tracking.uffd_wp import UffdWp, UserfaultfdAttachment

Attachment: TypeAlias = PagemapAttachment | UserfaultfdAttachment
"""The handle by which a method tracks one process."""
Method: TypeAlias = SoftDirty | UffdWp
"""A way to know which pages were written. Its name is what users see."""

# The kernel's PID_MAX_LIMIT. The other bits of an offset hold centuries of clock ticks.
_PID_BITS: Final = 22
_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, pid


class Claims:
    """The claims of one tracker: for each process a locked byte of one file. The locks end with this process."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file, if not the host's own. Raises OSError."""
        if path is None:
            path = runtime_directory() / "tracked"
            make_runtime_directory(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def claim(self, process: Identity) -> bool:
        """Claim a process. Return whether it is ours now: not if another tracker has it, even one in this process."""
        with suppress(BlockingIOError, PermissionError):
            self._set(fcntl.F_WRLCK, process)
            return True
        return False

    def give_up(self, process: Identity) -> None:
        self._set(fcntl.F_UNLCK, process)

    def close(self) -> None:
        """Give up all claims."""
        os.close(self._file)

    def _set(self, kind: int, process: Identity) -> None:
        # A claim may outlive its process, whose PID is used again: so the start time is part of the offset.
        place = process.start << _PID_BITS | process.pid
        # Locks of the open file description: a process loses its own locks when it closes any descriptor of the file.
        # Their l_pid must be 0 (fcntl(2)).
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0))


class _Member:
    """A process of the tree, and its attachment, or why it has none."""

    def __init__(self, process: proc.Process, attachment: Attachment | str) -> None:
        self.identity = process.identity
        self.attachment = attachment

    def catch_up(self) -> str:
        """Track what it has mapped since. Return why it is not tracked, or an empty string."""
        if isinstance(self.attachment, str):
            return self.attachment
        why = self.attachment.catch_up()
        if why:
            self.attachment.close()
            self.attachment = why
        return why


class Tracker:
    """The tracker of one tree, until `close`. For one thread."""

    def __init__(self, root: proc.Process, method: Method, claims: Claims) -> None:
        self.name = method.name
        self._root = root
        self._method = method
        self._claims = claims
        self._members: dict[int, _Member] = {}
        # What the bits count from; None if the next dump is to be full, and why.
        self.base: Base | None = None
        self.why_full = "this is the first tracked dump of this tree"
        self._spoiler = ""
        self._whole: dict[int, str] = {}
        self._in_dump: frozenset[int] = frozenset()
        # CRIU's preload library remembers here the flags of the tree's maps (smaps.c),
        self._flags = os.memfd_create("flags")
        # and in which frames its pages were when their soft-dirty bits were reset (frames.c).
        self._frames = os.memfd_create("frames")

    def look(self) -> None:
        """List the tree again, attach to new processes, track new maps. Raises HostCannot if the tree has ended."""
        living = {process.pid: process for process in self._living()}
        present = {process.identity for process in living.values()}
        for pid in [pid for pid, member in self._members.items() if member.identity not in present]:
            self._forget(pid)
        lost = {pid: why for pid, member in self._members.items() if (why := member.catch_up())}
        self._whole |= lost
        wanted = [one for pid, one in living.items() if pid in lost or pid not in self._members]
        while wanted:
            self._whole |= dict.fromkeys((one.pid for one in wanted if one.pid not in lost), "the process is new")
            self._whole |= self._attach(wanted)
            # A child that was forked during the attach may have inherited our userfaultfd: CRIU would refuse it.
            came = (one for one in self._living() if one.pid not in self._members)
            wanted = [one for one in came if self._method.is_left_in(one.pid)]

    def begin(self) -> DumpBasis:
        """Begin a dump, before CRIU starts. Unless `commit` follows, the bits are lost. Raises HostCannot."""
        self.look()
        self._in_dump = frozenset(self._members)
        # A process that has just ended could not be attached to, and needs no mention.
        there = {pid: why for pid, why in self._whole.items() if proc.read_process(pid) is not None}
        whole = tuple(WholeProcess(pid, f"PID {pid}: {why}") for pid, why in there.items())
        base, why = self.base, self.why_full
        # Until `commit`: the bits that a failed dump has reset are lost.
        self.base, self.why_full = None, "the tracker did not see the end of the last dump or round"
        self._spoiler = self._find_spoiler()
        if self._spoiler:
            self.why_full = self._spoiler
            return DumpBasis(None, self._spoiler, tracks=False, whole=())
        # No process has a part in the base.
        if base is not None and len(whole) == len(self._members):
            return DumpBasis(None, whole[0].why, tracks=True, whole=())
        return DumpBasis(base, why, tracks=True, whole=whole if base is not None else ())

    def check_freeze(self) -> None:
        """Look, while CRIU holds the tree frozen, for anything new that writes memory unseen."""
        self._spoiler = self._spoiler or self._find_spoiler()

    def commit(self, base: Base) -> None:
        """Count from `base`, the dump or round that began last and is kept."""
        self.base, self.why_full = (None, self._spoiler) if self._spoiler else (base, "")
        # A process that came after `begin`, or has no attachment, has no part in it.
        parts = {
            pid for pid in self._in_dump & self._members.keys() if not isinstance(self._members[pid].attachment, str)
        }
        self._whole = {pid: why for pid, why in self._whole.items() if pid not in parts}

    def find_refusal(self, *, all_of_it: bool = False) -> str:
        """Return why the root, or any process of `all_of_it`, has no attachment, or an empty string."""
        pids = self._members if all_of_it else (self._root.pid,)
        attachments = ((pid, self._members[pid].attachment) for pid in pids)
        return next((f"PID {pid}: {why}" for pid, why in attachments if isinstance(why, str)), "")

    def environment(self, criu: Path) -> Mapping[str, str]:
        """Return what to add to this CRIU's environment for a dump that `tracks`."""
        # By path: CRIU inherits no descriptor of this process.
        ours = f"/proc/{os.getpid()}/fd"
        kept = {"CRCKPT_MAP_FLAGS": f"{ours}/{self._flags}", "CRCKPT_FRAMES": f"{ours}/{self._frames}"}
        return {**self._method.environment(criu), **kept}

    def close(self) -> None:
        """Let the tree go. Nothing is left in it."""
        for pid in tuple(self._members):
            self._forget(pid)
        self._claims.close()
        os.close(self._flags)
        os.close(self._frames)

    def _living(self) -> tuple[proc.Process, ...]:
        root = self._root.identity.find()
        if root is None:
            raise HostCannot(f"PID {self._root.pid} ({self._root.comm}) has ended")
        return tuple(one for one in proc.read_tree(root).processes if not one.has_ended)

    def _attach(self, processes: list[proc.Process]) -> dict[int, str]:
        """Attach to these processes. Return why it failed, by the PIDs for which it did."""
        # Claimed first: the resets of two trackers would silently clear each other's bits (seen).
        refused = {one.pid: refusals.CLAIMED for one in processes if not self._claims.claim(one.identity)}
        ours = [one.pid for one in processes if one.pid not in refused]
        made: dict[int, Attachment | str] = {**refused, **(self._method.attach(ours) if ours else {})}
        self._members |= {one.pid: _Member(one, made[one.pid]) for one in processes}
        return {pid: why for pid, why in made.items() if isinstance(why, str)}

    def _forget(self, pid: int) -> None:
        member = self._members.pop(pid)
        if not isinstance(member.attachment, str):
            member.attachment.close()
        self._whole.pop(pid, None)
        self._claims.give_up(member.identity)

    def _find_spoiler(self) -> str:
        """Return why the bits must not be reset, or an empty string."""
        # Another tracker needs them, or something writes memory unseen.
        for pid, member in self._members.items():
            if isinstance(member.attachment, str) and member.attachment in refusals.NO_RESET:
                return f"PID {pid}: {member.attachment}"
        return refusals.find_unseen_writer(self._members)
