"""Identify the process that holds a lock or a transaction, so that others can tell whether it still lives."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace

from crckpt.errors import HostCannot, IntegrityError
from crckpt.host import proc
from crckpt.host.disk.checked_files import read_checked
from crckpt.host.disk.files import open_private, write
from crckpt.store.documents import decode

MOST_BYTES: Final = 4 << 20
"""The largest size of a record: it has the command line, whose length only execve(2) limits."""


class Owner(proc.Identity, frozen=True, kw_only=True):
    """The process that holds something, its `host` and command line, and `since` when it does (Unix time)."""

    host: str
    command: str
    since: Annotated[float, Meta(ge=0, le=1e11)]

    @property
    def is_alive(self) -> bool:
        """Whether it still runs on this host, or may: one in another PID namespace of this boot cannot be seen."""
        return not self.has_ended()

    def is_same(self, other: Owner) -> bool:
        """Return whether both are one process."""
        return self == replace(other, command=self.command, since=self.since)

    def encode(self) -> bytes:
        """Encode it as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def identify_owner(since: float, pid: int = 0) -> Owner:
    """Identify this process, or process `pid` of its PID namespace. Raises HostCannot if that has ended."""
    pid = pid or os.getpid()
    process = proc.read_process(pid)
    if process is None:
        raise HostCannot(f"PID {pid} has ended")
    return Owner(
        host=platform.node(),
        boot_id=proc.boot_id(),
        pid_namespace=proc.namespace("self", "pid"),
        pid=pid,
        start=process.start,
        command=" ".join(proc.command_line(pid)),
        since=since,
    )


def write_owner(path: Path, since: float, what: str, *, pid: int = 0) -> None:
    """Record process `pid`, or this one, in a new file.

    `what` names its steps.
    """
    # It is not synced: after a crash the process is dead anyway.
    descriptor = open_private(path, what)
    try:
        write(descriptor, identify_owner(since, pid).encode(), what)
    finally:
        os.close(descriptor)


def read_owner(path: Path) -> Owner | None:
    """Read the process recorded in a file; None if there is none or it is damaged."""
    try:
        return decode(read_checked(path, MOST_BYTES), Owner, str(path))
    except (OSError, IntegrityError, msgspec.ValidationError):
        return None
