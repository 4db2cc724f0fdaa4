"""Checkpoints that are not durable yet: the tree runs on, its images are being stored. Or they were lost on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from crckpt.errors import CrckptError, IntegrityError
from crckpt.host.disk.checked_files import is_directory, read_checked
from crckpt.host.disk.files import ensure_private_directory, own_name, remove, write_durably
from crckpt.model import JobName, RunId
from crckpt.store.format.documents import decode
from crckpt.store.layout import Layout
from crckpt.store.owner import MOST_BYTES, Owner, owner_of


class Pending(Struct, frozen=True):
    """`created` is aware, `pid` stores it. `lost` is None as long as it does, and then why there is no checkpoint."""

    job: JobName
    created: datetime
    run_id: str | None
    pid: int
    lost: str | None


class _Record(Struct, frozen=True):
    job: JobName
    created: Annotated[datetime, Meta(tz=True)]
    run_id: RunId | None
    owner: Owner
    lost: str | None = None


@contextmanager
def announced(layout: Layout, job: JobName, created: datetime, run_id: str | None, *, alone: bool) -> Iterator[None]:
    """While the block stores a checkpoint, it is known as pending. A crash leaves it known as lost, until gc.

    So does a failure, if crckpt is `alone`: else it is said there and then.
    """
    ensure_private_directory(layout.pending, "pending")
    path = layout.pending / own_name()
    facts = {"job": job, "created": created.isoformat(), "run_id": run_id, "owner": asdict(owner_of(time.time()))}
    _write(path, facts)
    try:
        yield
    except BaseException as error:
        if alone:
            _write(path, {**facts, "lost": error.message if isinstance(error, CrckptError) else str(error)})
        else:
            _forget(path)
        raise
    _forget(path)


def read_pending(layout: Layout) -> tuple[Pending, ...]:
    """All that is pending or lost, oldest first. What was stored a moment before a crash may be among them."""
    paths = layout.pending.iterdir() if is_directory(layout.pending) else ()
    found = (_read(path) for path in paths)
    return tuple(sorted((pending for pending in found if pending), key=lambda pending: pending.created))


def _write(path: Path, facts: Mapping[str, object]) -> None:
    write_durably(path, json.dumps(facts, sort_keys=True).encode(), "pending")


def _forget(path: Path) -> None:
    with suppress(OSError):
        remove(path, "pending")


def _read(path: Path) -> Pending | None:
    try:
        record = decode(read_checked(path, MOST_BYTES), _RECORD, str(path))
    except (OSError, IntegrityError, msgspec.ValidationError):
        return None
    lost, owner = record.lost, record.owner
    if lost is None and not owner.is_alive:
        lost = f"crckpt (PID {owner.pid}) ended before it was stored"
    return Pending(record.job, record.created, record.run_id, owner.pid, lost)


_RECORD: Final = msgspec.json.Decoder(_Record)
