"""Read and write packs: frames, their table, a footer. `crckpt.store` specifies the format."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.files import LOST, open_private, sync, write
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.backend.local import Backend, StoreFile
from crckpt.store.layout import SHORT, pack_name

MAGIC: Final = b"CRCKPAK1"
FRAME_PAGES: Final = 64
FRAME_SIZE: Final = FRAME_PAGES * PAGE_SIZE
MOST_FRAMES: Final = 1 << 20
"""The most frames of a pack: 256 GiB of pages. Their table takes 48 MiB."""

# The most bytes of a stored frame: zstd adds far less to what does not compress (ZSTD_compressBound).
_MOST_STORED: Final = 2 * FRAME_SIZE

FOOTER: Final = struct.Struct("<QII8s")
FRAME: Final = np.dtype([("offset", "<u8"), ("stored", "<u4"), ("raw", "<u4"), ("sha256", "u1", (32,))])

FEWEST_BYTES: Final = len(MAGIC) + FRAME.itemsize + FOOTER.size
MOST_BYTES: Final = len(MAGIC) + MOST_FRAMES * (_MOST_STORED + FRAME.itemsize) + FOOTER.size
"""The size of the largest pack."""

_local = threading.local()


class Pack(Struct, frozen=True):
    """A pack whose frame table was checked against its digest. `size` is that of the file, in bytes."""

    backend: Backend
    file: str
    digest: PackId
    size: int
    table: npt.NDArray[np.void]

    @property
    def pages(self) -> int:
        return (len(self.table) - 1) * FRAME_PAGES + int(self.table["raw"][-1]) // PAGE_SIZE

    def read_stored(self, frame: int) -> memoryview:
        """Read the stored bytes of a frame. Raises IntegrityError if the file is cut short."""
        length = int(self.table["stored"][frame])
        with self._opened(f"{self.name}, frame {frame}") as file:
            content = file.read(length, int(self.table["offset"][frame]))
        if len(content) != length:
            raise self._cut_short_error(frame)
        return memoryview(content)

    def check(self, frame: int, stored: memoryview) -> None:
        """Raise IntegrityError if these are not the stored bytes of that frame."""
        if hashlib.sha256(stored).digest() != self.table["sha256"][frame].tobytes():
            raise IntegrityError(f"{self.name}, frame {frame}: its SHA-256 does not match")

    def read_frame(self, frame: int) -> bytearray:
        """Read a frame and unpack it. Raises IntegrityError if it is not what was stored."""
        content = bytearray(int(self.table["raw"][frame]))
        self.unpack_frames([frame], [memoryview(content)])
        return content

    def unpack_frames(self, frames: list[int], into: Sequence[memoryview]) -> None:
        """Unpack frames, in the order of the pack, each into FRAME_SIZE bytes.

        Raises IntegrityError if they are not what was stored.
        """
        # Adjacent ones are read at once.
        some = self.table[frames]
        offsets, sizes, raws = (some[column].tolist() for column in ("offset", "stored", "raw"))
        content = self._read_together(frames, offsets, sizes)
        # One for each thread: they must not be shared.
        if not hasattr(_local, "decompressor"):
            _local.decompressor = zstandard.ZstdDecompressor()
        for frame, size, raw, memory in zip(frames, sizes, raws, into, strict=True):
            stored, content = content[:size], content[size:]
            self.check(frame, stored)
            try:
                # zstd takes as much memory as the frame declares: one of 131 KB once took 4 GiB.
                declared = zstandard.frame_content_size(stored)
                if declared != raw:
                    raise IntegrityError(f"{self.name}, frame {frame}: it has {declared} bytes, not {raw}")
                # Straight into the caller's memory: `decompress` would allocate some, which would have to be copied.
                done = _local.decompressor.stream_reader(stored).readinto(memory[:raw])
            except zstandard.ZstdError as error:
                raise IntegrityError(f"{self.name}, frame {frame}: {error}") from error
            if done != raw:
                raise IntegrityError(f"{self.name}, frame {frame}: {done} bytes instead of {raw}")

    def read_ahead(self, frames: Sequence[int]) -> None:
        """Let the disk read frames, in order, into the page cache."""
        # A failure is ignored: the read will fail.
        with suppress(IntegrityError, OSError), self._opened(self.name) as file:
            for first, last in _adjacent_frames(frames):
                start = int(self.table["offset"][first])
                end = int(self.table["offset"][last]) + int(self.table["stored"][last])
                file.read_ahead(start, end - start)

    def _read_together(self, frames: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> memoryview:
        """Read the stored bytes of frames, one after the other; valid until this thread reads others."""
        # Memory of this thread that is used again costs no page faults.
        size = sum(sizes)
        if len(getattr(_local, "buffer", b"")) < size:
            _local.buffer = memoryview(bytearray(size))
        content: memoryview = _local.buffer[:size]
        with self._opened(f"{self.name}, frame {frames[0]} or one after it") as file:
            at = done = 0
            for first, last in _adjacent_frames(frames):
                count = last + 1 - first
                length = sum(sizes[at : at + count])
                if file.read_into(content[done : done + length], offsets[at]) != length:
                    raise self._cut_short_error(first)
                at, done = at + count, done + length
        return content

    def _opened(self, name: str) -> AbstractContextManager[StoreFile]:
        return _opened(self.backend, self.file, name)

    def _cut_short_error(self, frame: int) -> IntegrityError:
        return IntegrityError(f"{self.name}, frame {frame}: the file is cut short")

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"pack {self.digest[:SHORT]}"


def open_pack(backend: Backend, digest: PackId, file: str = "") -> Pack:
    """Read the footer and table of a pack of the store, or of `file`.

    Raises IntegrityError if it is missing, cut short, or not what `digest` names.
    """
    file = file or pack_name(digest)
    name = f"pack {digest[:SHORT]}"
    try:
        with _opened(backend, file, name) as opened:
            size = opened.size
            if size < len(MAGIC) + FOOTER.size or opened.read(len(MAGIC), 0) != MAGIC:
                raise IntegrityError(f"{name}: its header is damaged")
            offset, count, page_size, magic = FOOTER.unpack(opened.read(FOOTER.size, size - FOOTER.size))
            whole = offset + count * FRAME.itemsize + FOOTER.size == size
            if count > MOST_FRAMES:
                raise IntegrityError(f"{name}: it declares {count} frames, more than a pack may have")
            if magic != MAGIC or page_size != PAGE_SIZE or not whole or not count:
                raise IntegrityError(f"{name}: its end is missing or damaged")
            table = opened.read(count * FRAME.itemsize, offset)
    except (FileNotFoundError, NotADirectoryError):
        raise IntegrityError(f"{name} is missing ({backend.location}/{file})") from None
    if hashlib.sha256(table).hexdigest() != digest:
        raise IntegrityError(f"{name}: the SHA-256 of its frame table differs from its name")
    frames = np.frombuffer(table, FRAME)
    starts = np.concatenate((frames["offset"], [np.uint64(size - FOOTER.size - len(table))]))
    # Without gaps, every byte of the file is under a SHA-256.
    gapless = starts[0] == len(MAGIC) and np.array_equal(starts[1:], frames["offset"] + frames["stored"])
    last = int(frames["raw"][-1])
    if (frames["stored"] > _MOST_STORED).any():
        raise IntegrityError(f"{name}: a frame is larger than its pages")
    if not gapless or (frames["raw"][:-1] != FRAME_SIZE).any() or last % PAGE_SIZE or not 0 < last <= FRAME_SIZE:
        raise IntegrityError(f"{name}: its frame table is inconsistent")
    return Pack(backend, file, digest, size, frames)


class Frame(Struct, frozen=True):
    """The stored bytes of a frame, their SHA-256, and how many bytes its pages have."""

    stored: bytes
    sha256: bytes
    raw: int


class FinishedPack(Struct, frozen=True):
    """A finished pack, durable under a temporary name; `size` in bytes."""

    path: Path
    digest: PackId
    frames: int
    pages: int
    size: int


class PackWriter:
    """Writes a pack to `path`, a new file: `add` frames, then `finish`, and `close` in any case."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the disk is full, as the other methods do."""
        self.pages = 0
        self._path = path
        self._table: list[tuple[int, int, int, bytes]] = []
        self._offset = len(MAGIC)
        self._file = open_private(path, "pack")
        try:
            write(self._file, MAGIC, "pack")
        except BaseException:
            self.close()
            raise

    def add(self, frame: Frame) -> None:
        """Write the next frame."""
        write(self._file, frame.stored, "pack")
        self._table.append((self._offset, len(frame.stored), frame.raw, frame.sha256))
        self._offset += len(frame.stored)
        self.pages += frame.raw // PAGE_SIZE

    def finish(self) -> FinishedPack:
        """Write the table, and make the file's content durable."""
        table = np.array(
            [(offset, stored, raw, np.frombuffer(digest, np.uint8)) for offset, stored, raw, digest in self._table],
            FRAME,
        ).tobytes()
        footer = FOOTER.pack(self._offset, len(self._table), PAGE_SIZE, MAGIC)
        write(self._file, table + footer, "pack")
        sync(self._file, "pack")
        size = self._offset + len(table) + len(footer)
        # The table has the SHA-256 of each frame, so its own covers every byte of the pages.
        return FinishedPack(self._path, PackId(hashlib.sha256(table).hexdigest()), len(self._table), self.pages, size)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextmanager
def _opened(backend: Backend, file: str, name: str) -> Iterator[StoreFile]:
    """Open a file. Raises IntegrityError, which begins with `name`, if the disk has lost something of it."""
    try:
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(backend.open(file))
            except IntegrityError as error:
                raise IntegrityError(f"{name}: {error.message}") from error
            yield opened
    except OSError as error:
        if error.errno in LOST:
            raise IntegrityError(f"{name}: {error.strerror}") from error
        raise


def _adjacent_frames(frames: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of frames that follow each other."""
    bounds = [at for at in range(1, len(frames)) if frames[at] != frames[at - 1] + 1]
    return ((frames[start], frames[end - 1]) for start, end in zip([0, *bounds], [*bounds, len(frames)], strict=True))
