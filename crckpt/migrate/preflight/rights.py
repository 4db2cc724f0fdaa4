"""The users and groups whose rights a live tree has: each thread may have its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from crckpt.errors import PreflightRefused
from crckpt.host.proc import procfs
from crckpt.host.proc.status import read_status

Right: TypeAlias = tuple[Literal["user", "group"], int]

_ROOT: Final = "0"


def read_rights(pids: Iterable[int]) -> frozenset[Right]:
    """Read the users and groups of all threads, without those that are root's or can become root: these need no more.

    A process that ends now has none.
    """
    return frozenset(right for pid in pids for right in _read_process(pid))


def refuse_new_rights(root: int, compared: frozenset[Right]) -> None:
    """Raise PreflightRefused if a frozen tree has rights that were not compared: they may be others on the other host.

    Since the gate it may have run a set-user-id program, newgrp(1) for example.
    """
    new = sorted(read_rights(find_frozen(root)) - compared)
    if new:
        kind, number = new[0]
        raise PreflightRefused(
            f"the program has taken the rights of {kind} {number} since the check",
            state="it keeps running here",
            hint="run the command again: crckpt compares the names on both hosts first",
        )


def find_frozen(pid: int) -> Iterator[int]:
    """Find the processes of a frozen tree. In others the kernel's list of children may miss some (proc(5))."""
    yield pid
    for tid in procfs.living_threads(pid):
        with suppress(OSError):
            for child in procfs.text(f"/proc/{pid}/task/{tid}/children").split():
                yield from find_frozen(int(child))


def _read_process(pid: int) -> Iterator[Right]:
    for tid in procfs.living_threads(pid):
        with suppress(OSError):
            yield from _parse(read_status(pid, tid))


def _parse(status: dict[str, str]) -> Iterator[Right]:
    # Real, effective, saved, and that of the file system: a process may take on each of the first three.
    users = status.get("Uid", "").split()
    if _ROOT in users:
        return
    yield from (("user", int(number)) for number in users)
    for name in ("Gid", "Groups"):
        yield from (("group", int(number)) for number in status.get(name, "").split())
