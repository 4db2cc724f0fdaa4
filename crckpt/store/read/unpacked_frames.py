"""Keep frames unpacked in memory from before a restore, so that the restore only has to copy them."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack, suppress
from mmap import MAP_PRIVATE, mmap
from typing import Final

import numpy as np
import numpy.typing as npt

from crckpt.errors import IntegrityError
from crckpt.host.disk.space import free_memory
from crckpt.store.format.extents import Bytes, Numbers, Positions, unique_sorted
from crckpt.store.format.index import PAGES
from crckpt.store.format.pack import FRAME_SIZE, Pack
from crckpt.store.read.contents import Contents
from crckpt.store.read.pieces import group_by_pack, pieces_of
from crckpt.store.workers import wait_for_result, workers

# Frames that one task unpacks: 2 MiB.
_FRAMES_AT_ONCE: Final = 8
# Packs of which frames are kept: each takes a mapping of its own.
_MOST_PACKS: Final = 4096
# Of the memory that is left when the tree has its own, this share may be used.
_SHARE: Final = 0.75


class UnpackedFrames:
    """Verified, unpacked frames, found by pack and number. They stay until this is dropped.

    For one thread; threads of its own unpack. `find` only what was unpacked before `stop`.
    """

    def __init__(self, reserved: int) -> None:
        """`reserved` bytes of memory are left free, for the tree."""
        self._reserved = reserved
        self._packs: dict[str, _UnpackedPack] = {}
        self._threads = ExitStack()
        self._tasks: list[Future[None]] = []

    def begin(self, contents: Contents) -> None:
        """Begin to unpack the memory of a checkpoint, as far as there is room. Raises IntegrityError."""
        self.stop()
        room = int((free_memory() - self._reserved) * _SHARE) // FRAME_SIZE
        pool = self._threads.enter_context(workers())
        with contents.named():
            frames = [
                pieces_of(contents, file.name, file.extents, file.extents["first"].astype(np.int64)).frames
                for file in contents.index.files
                if file.kind == PAGES
            ]
            in_order = unique_sorted(np.concatenate([np.empty(0, np.int64), *frames]))
            for pack, numbers in group_by_pack(contents, in_order):
                missing = self._find_missing(pack, numbers)[: max(room, 0)]
                room -= len(missing)
                for at in range(0, len(missing), _FRAMES_AT_ONCE):
                    some = missing[at : at + _FRAMES_AT_ONCE]
                    self._tasks.append(pool.submit(self._packs[pack.digest].unpack, pack, some))

    def wait(self) -> None:
        """Wait until all that was begun is unpacked."""
        for task in self._tasks:
            wait_for_result(task)

    def stop(self) -> None:
        """Unpack no more; return when the threads have ended."""
        self._threads.close()
        self._tasks = []

    def find(self, contents: Contents, frames: Positions) -> Numbers:
        """Return the address of each of these frames, numbered as in `Pieces` and in order; 0 for one that is not kept.

        Raises IntegrityError.
        """
        found = [
            kept.find(numbers) if (kept := self._packs.get(pack.digest)) else np.zeros(len(numbers), np.uint64)
            for pack, numbers in group_by_pack(contents, frames)
        ]
        return np.concatenate([np.empty(0, np.uint64), *found])

    def _find_missing(self, pack: Pack, numbers: list[int]) -> list[int]:
        """Find which of these frames are not unpacked, if they may be."""
        kept = self._packs.get(pack.digest)
        if kept is None:
            if len(self._packs) >= _MOST_PACKS:
                return []
            try:
                kept = self._packs[pack.digest] = _UnpackedPack(pack)
            except OSError:  # the user's limit, or no memory may be promised that is not there
                return []
        return kept.find_missing(numbers)


class _UnpackedPack:
    """Frames of one pack, each at its place."""

    def __init__(self, pack: Pack) -> None:
        # Only what is written takes memory.
        memory = mmap(-1, len(pack.table) * FRAME_SIZE, MAP_PRIVATE)
        self._frames: Bytes = np.frombuffer(memory, np.uint8).reshape(-1, FRAME_SIZE)
        self._are_unpacked: npt.NDArray[np.bool_] = np.zeros(len(pack.table), np.bool_)

    def find_missing(self, numbers: list[int]) -> list[int]:
        """Return those of these frames that are not unpacked."""
        wanted = np.array(numbers, np.int64)
        missing: list[int] = wanted[~self._are_unpacked[wanted]].tolist()
        return missing

    def find(self, numbers: list[int]) -> Numbers:
        """Return the addresses of these frames; 0 for one that is not unpacked."""
        wanted = np.array(numbers, np.uint64)
        address = np.uint64(self._frames.ctypes.data) + wanted * np.uint64(FRAME_SIZE)
        return np.where(self._are_unpacked[wanted.astype(np.int64)], address, np.uint64(0))

    def unpack(self, pack: Pack, numbers: list[int]) -> None:
        """Verify and unpack frames. What is damaged is not kept: who needs it reads it, and learns of the damage."""
        with suppress(IntegrityError, OSError):
            pack.unpack_frames(numbers, [self._frames[number].data for number in numbers])
            self._are_unpacked[numbers] = True
