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

from crckpt.host import proc
from crckpt.host.opened import opened
from crckpt.host.proc.mountinfo import Mount, read_mounts_of
from crckpt.host.process.criu_progress import ANSWERED_BY_PROGRAMS, QUIET_S, waits_for_a_program
from crckpt.host.process.signals import start_thread
from crckpt.host.syscalls.libc import syscall

_CREATE: Final = 6  # FSCONFIG_CMD_CREATE, linux/mount.h
_WAITS_IN: Final = ANSWERED_BY_PROGRAMS[:1]  # an abort does not end a wait for a userfaultfd
_LOOK_S: Final = 1.0


def abort_connections(pids: Iterable[int], users: Iterable[int] = ()) -> tuple[str, ...]:
    """Abort connections with unanswered requests, of mounts that these processes see; return their mount points.

    Only mounts of `users` and of the users of these processes count. Needs CAP_SYS_ADMIN in the first user namespace.
    """
    found, done = dict[int, Mount](), []
    owners = {f"user_id={uid}" for uid in users}
    for pid in pids:
        with suppress(OSError):
            process = proc.read_process(pid)
            # "The numeric user id of the mount owner" (fuse.rst).
            owners.update(f"user_id={uid}" for uid in (process.uids if process is not None else ()))
            found.update((mount.device, mount) for mount in read_mounts_of(pid) if mount.kind.split(".")[0] == "fuse")
    # The kernel's directory of connections, without mounting it anywhere (Linux 5.2): /sys/fs/fuse/connections is often
    # not mounted in containers.
    with suppress(OSError), ExitStack() as stack:
        context = stack.enter_context(opened(syscall("fsopen", b"fusectl", 1)))  # FSOPEN_CLOEXEC
        syscall("fsconfig", context, _CREATE, None, None, 0)
        connections = stack.enter_context(opened(syscall("fsmount", context, 1, 0)))  # FSMOUNT_CLOEXEC
        for mount in (each for each in found.values() if each.of_all & owners):
            with suppress(OSError):
                # The kernel names a connection by the minor number of its device. An idle connection owes no answer:
                # leave it alone.
                connection = Path(f"/proc/self/fd/{connections}/{os.minor(mount.device)}")
                if int((connection / "waiting").read_text()) > 0:
                    (connection / "abort").write_text("1")
                    done.append(mount.path)
    return tuple(done)


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
            waited = waited + 1 if waits_for_a_program(waiting(), _WAITS_IN) else 0
            if waited > QUIET_S:
                aborted.extend(abort())
                waited = 0

    thread = start_thread(watch)
    try:
        yield aborted
    finally:
        is_over.set()
        thread.join()


def tree_pids(root: int) -> tuple[int, ...]:
    """PIDs of the tree below `root`; none if there is no such process."""
    process = proc.read_process(root)
    return proc.read_tree(process).pids if process is not None else ()
