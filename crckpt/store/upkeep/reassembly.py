"""Make a pack from damaged copies: take each frame from a copy in which it is intact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.host.disk.files import created, sync, write
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.format.pack import FOOTER, MAGIC, open_pack

_Part = TypeVar("_Part")


def reassemble(digest: PackId, copies: Sequence[Backend], into: Path) -> None:
    """Write the pack to `into`, a new file, durably, and verify it.

    Raises IntegrityError if no copy has its frame table, or one of the frames (it says what is wrong with the first
    copy, whose store the caller names), OSError if the disk is full. Then there is no file.
    """
    pack = _first(copies, lambda backend: open_pack(backend, digest))
    table = pack.table.tobytes()

    def read_intact(frame: int, backend: Backend) -> memoryview:
        # The table holds for every copy: the digest names it.
        stored = replace(pack, backend=backend).read_stored(frame)
        pack.check(frame, stored)
        return stored

    with created(into, "pack") as descriptor:
        write(descriptor, MAGIC, "pack")
        for frame in range(len(pack.table)):
            write(descriptor, _first(copies, partial(read_intact, frame)), "pack")
        end = pack.size - FOOTER.size - len(table)
        write(descriptor, table + FOOTER.pack(end, len(pack.table), PAGE_SIZE, MAGIC), "pack")
        sync(descriptor, "pack")
        # Read back before it replaces anything: only what was verified may do that.
        written = open_pack(Backend(into.parent), digest, into.name)
        for frame in range(len(written.table)):
            written.check(frame, written.read_stored(frame))


def _first(copies: Sequence[Backend], read: Callable[[Backend], _Part]) -> _Part:
    """Read something from the first copy in which it is intact."""
    errors: list[Exception] = []
    for backend in copies:
        try:
            return read(backend)
        except (IntegrityError, OSError) as error:
            errors.append(error)
    raise IntegrityError(str(errors[0]))
