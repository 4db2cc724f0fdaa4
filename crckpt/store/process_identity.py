"""Identify the process that holds a lock or a transaction, so that others can tell whether it still lives."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from crckpt.errors import HostCannot, IntegrityError
from crckpt.host import proc
from crckpt.host.disk.checked_files import read_checked
from crckpt.host.disk.files import open_private, write
from crckpt.model import Count, Pid
from crckpt.store.documents import decode

MOST_BYTES: Final = 4 << 20
"""The largest size of a record: it has the command line, whose length only execve(2) limits."""


class ProcessIdentity(Struct, frozen=True):
    """A process, unique for ever: `start` is its start time in clock ticks after the boot `boot_id`.

    `pid_namespace` is the inode of the PID namespace of `pid`; `since` is when it began to hold (Unix time).
    """

    host: str
    boot_id: str
    pid_namespace: Count
    pid: Pid
    start: Count
    command: str
    since: Annotated[float, Meta(ge=0, le=1e11)]

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is of another boot, perhaps of another host, where it may run."""
        return self.boot_id != proc.boot_id()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs on this host."""
        # A process in another PID namespace of this boot cannot be seen: it counts as alive.
        if self.is_elsewhere:
            return False
        if self.pid_namespace != proc.namespace("self", "pid"):
            return True
        process = proc.read_process(self.pid)
        # The kernel gives the PID of a process that has ended to another, which started later.
        return process is not None and process.start == self.start and not process.has_ended

    def is_same(self, other: ProcessIdentity) -> bool:
        """Return whether both are one process."""
        process, another = ((it.host, it.boot_id, it.pid_namespace, it.pid, it.start) for it in (self, other))
        return process == another

    def encode(self) -> bytes:
        """Encode it as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def identify_process(since: float, pid: int = 0) -> ProcessIdentity:
    """Identify this process, or process `pid` of its PID namespace. Raises HostCannot if that has ended."""
    pid = pid or os.getpid()
    process = proc.read_process(pid)
    if process is None:
        raise HostCannot(f"PID {pid} has ended")
    return ProcessIdentity(
        host=platform.node(),
        boot_id=proc.boot_id(),
        pid_namespace=proc.namespace("self", "pid"),
        pid=pid,
        start=process.start,
        command=" ".join(proc.command_line(pid)),
        since=since,
    )


def write_identity(path: Path, since: float, what: str, *, pid: int = 0) -> None:
    """Record process `pid`, or this one, in a new file.

    `what` names its steps.
    """
    # It is not synced: after a crash the process is dead anyway.
    descriptor = open_private(path, what)
    try:
        write(descriptor, identify_process(since, pid).encode(), what)
    finally:
        os.close(descriptor)


def read_identity(path: Path) -> ProcessIdentity | None:
    """Read the process recorded in a file; None if there is none or it is damaged."""
    try:
        return decode(read_checked(path, MOST_BYTES), _OWNER, str(path))
    except (OSError, IntegrityError, msgspec.ValidationError):
        return None


_OWNER: Final = msgspec.json.Decoder(ProcessIdentity)
