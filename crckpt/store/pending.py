"""Checkpoints that are not durable yet: the tree keeps running, its images are being stored, or were lost."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from crckpt.errors import CrckptError, IntegrityError, error_text
from crckpt.host.disk.files import own_name
from crckpt.model import JobName, RunId
from crckpt.store.backend.local import Backend
from crckpt.store.documents import decode
from crckpt.store.layout import PENDING
from crckpt.store.owner import MOST_BYTES, Owner, identify_owner


class PendingCheckpoint(Struct, frozen=True):
    """A checkpoint that process `pid` stores; `created` is aware. `lost` is why there is no checkpoint, or None.

    `host`: of the process, if whether it runs is not known here; empty if it runs here.
    """

    job: JobName
    created: datetime
    run_id: RunId | None
    pid: int
    lost: str | None
    host: str = ""


class _Record(Struct, frozen=True):
    job: JobName
    created: Annotated[datetime, Meta(tz=True)]
    run_id: RunId | None
    owner: Owner
    lost: str | None = None


@contextmanager
def announced(
    backend: Backend, job: JobName, created: datetime, run_id: RunId | None, *, alone: bool
) -> Iterator[None]:
    """List a checkpoint as pending while the block stores it. After a crash it is listed as lost, until gc."""
    # If crckpt is `alone`, nobody sees the error of a failure: then that is listed, too.
    name = f"{PENDING}/{own_name()}"
    record = {
        "job": job,
        "created": created.isoformat(),
        "run_id": run_id,
        "owner": asdict(identify_owner(time.time())),
    }
    _write(backend, name, record)
    try:
        yield
    except BaseException as error:
        if alone:
            _write(backend, name, {**record, "lost": error_text(error) if isinstance(error, Exception) else str(error)})
        else:
            _forget(backend, name)
        raise
    _forget(backend, name)


def read_pending(backend: Backend) -> tuple[PendingCheckpoint, ...]:
    """Read what is pending or lost, oldest first."""
    # What was stored just before a crash may be among it.
    found = []
    for name in backend.names_in(PENDING):
        # A record that cannot be read names no checkpoint; gc removes it.
        with suppress(OSError, IntegrityError, msgspec.ValidationError):
            found.append(decode(backend.read(f"{PENDING}/{name}", MOST_BYTES), _Record, name))
    return tuple(_judge(backend, record) for record in sorted(found, key=lambda record: record.created))


def _write(backend: Backend, name: str, record: Mapping[str, object]) -> None:
    backend.put(name, json.dumps(record, sort_keys=True).encode(), "pending")


def _forget(backend: Backend, name: str) -> None:
    with suppress(OSError):
        backend.remove(name, "pending")


def _judge(backend: Backend, record: _Record) -> PendingCheckpoint:
    lost, owner, host = record.lost, record.owner, ""
    if lost is None and not owner.is_alive:
        # Who stores a checkpoint holds the store's lock, on any host; a shared file system may have no locks.
        may_run = owner.is_elsewhere
        if may_run and owner.host == platform.node():
            with suppress(CrckptError, OSError), backend.locked(alone=True, timeout=0):
                may_run = False
        if may_run:
            host = owner.host
        else:
            lost = f"crckpt (PID {owner.pid}) ended before the checkpoint was stored"
    return PendingCheckpoint(record.job, record.created, record.run_id, owner.pid, lost, host)
