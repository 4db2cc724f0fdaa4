"""Abort file systems in user space (FUSE) that do not answer.

A task that waits for an answer cannot be killed once the file system's program has read the request. It stops waiting
if the connection is aborted: then every access fails with ENOTCONN. Source: Documentation/filesystems/fuse/fuse.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Final

from crckpt.host.opened import opened
from crckpt.host.proc.mountinfo import read_mounts_of
from crckpt.host.proc.status import read_status
from crckpt.host.process.criu_progress import ANSWERED_BY_PROGRAMS, QUIET_S, waits_for_a_program, waits_for_an_exec
from crckpt.host.process.signals import start_thread
from crckpt.host.syscalls.libc import syscall

_CREATE: Final = 6  # FSCONFIG_CMD_CREATE, linux/mount.h
_WAITS_IN: Final = ANSWERED_BY_PROGRAMS[:1]  # an abort does not end a wait for a userfaultfd
_LOOK_S: Final = 1.0


def abort_connections(pids: Iterable[int], users: Iterable[int] = ()) -> tuple[str, ...]:
    """Abort connections with unanswered requests, of mounts that these processes see; return their mount points.

    Only those of `users` and of the users of these processes count. If the processes see none that owes one, abort
    others, but none of root's: a process can use a file system that it does not see (`umount -l`, another mount
    namespace). These are named "FUSE connection N". Needs CAP_SYS_ADMIN in the first user namespace.
    """
    owners, seen = {*users}, dict[int, str]()
    for pid in pids:
        with suppress(OSError):
            owners.update(map(int, read_status(pid)["Uid"].split()))
            mounts = (mount for mount in read_mounts_of(pid) if mount.kind.split(".")[0] == "fuse")
            seen.update((os.minor(mount.device), mount.path) for mount in mounts)
    done = []
    with suppress(OSError), _connections() as directory:
        waiting = [int(each.name) for each in directory.iterdir() if _is_waiting(each)]
        for number in [each for each in waiting if each in seen] or waiting:
            connection = directory / str(number)
            with suppress(OSError):
                # It belongs to the owner of the mount (fs/fuse/control.c).
                owner = connection.stat().st_uid
                if owner in owners and (owner or number in seen):
                    (connection / "abort").write_text("1")
                    done.append(seen.get(number, f"FUSE connection {number}"))
    return tuple(done)


@contextmanager
def _connections() -> Iterator[Path]:
    """The kernel's directory of connections, which it names by the minor numbers of their devices. Raises OSError.

    It is not mounted anywhere (Linux 5.2): /sys/fs/fuse/connections is often not mounted in containers.
    """
    with ExitStack() as stack:
        context = stack.enter_context(opened(syscall("fsopen", b"fusectl", 1)))  # FSOPEN_CLOEXEC
        syscall("fsconfig", context, _CREATE, None, None, 0)
        found = stack.enter_context(opened(syscall("fsmount", context, 1, 0)))  # FSMOUNT_CLOEXEC
        yield Path(f"/proc/self/fd/{found}")


def _is_waiting(connection: Path) -> bool:
    """Return whether a connection owes an answer. An idle one is left alone."""
    with suppress(OSError):
        return int((connection / "waiting").read_text()) > 0
    return False


@contextmanager
def limited_answers(waiting: Callable[[], Iterable[int]], abort: Callable[[], tuple[str, ...]]) -> Iterator[list[str]]:
    """During this block, call `abort` when a process of `waiting` has waited for an answer for QUIET_S seconds.

    Add the mount points that it returns to the list.
    """
    is_over = Event()
    aborted: list[str] = []

    def watch() -> None:
        waited = 0
        while not is_over.wait(_LOOK_S):
            pids = tuple(waiting())
            # A process of the tree may execute a program, and wait for the file system while it closes a file.
            waited = waited + 1 if waits_for_a_program(pids, _WAITS_IN) or waits_for_an_exec(pids) else 0
            if waited > QUIET_S:
                aborted.extend(abort())
                waited = 0

    thread = start_thread(watch)
    try:
        yield aborted
    finally:
        is_over.set()
        thread.join()
