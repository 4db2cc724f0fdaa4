"""Which files the processes of a frozen tree have open, and for what, as the kernel has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from pathlib import Path

from msgspec.structs import replace

from crckpt.host.proc import procfs
from crckpt.host.proc.fd import read_targets
from crckpt.host.proc.mountinfo import read_mount_ids
from crckpt.host.proc.task_states import OpenedFile, ProcessState, TaskStates
from crckpt.host.process.pidfd import borrow_each


def add_opened_files(states: TaskStates, root: int) -> TaskStates:
    """Read the files of a frozen tree that have a path, except of processes with all our rights.

    Those are left out that are on no mount of ours or of the tree's `root`: their paths may be any.
    """
    mounts = frozenset(read_mount_ids("self")) | frozenset(read_mount_ids(root))
    return replace(states, processes={pid: _add(state, mounts) for pid, state in states.processes.items()})


def _add(state: ProcessState, mounts: frozenset[int]) -> ProcessState:
    files: dict[int, OpenedFile] = {}
    with suppress(OSError):  # it is ended: then it has none of those that it reports
        files.update(_read_files(state.pid, mounts) if not state.is_trusted else ())
    return replace(state, files=None if state.is_trusted else files)


def _read_files(pid: int, mounts: frozenset[int]) -> Iterator[tuple[int, OpenedFile]]:
    # Processes outside the tree may share its descriptors (CLONE_FILES), and exchange them between two reads. Our own
    # descriptor leads to one file.
    descriptors = (fd for fd, target in read_targets(pid) if target.startswith("/"))
    for fd, ours in borrow_each(pid, descriptors):
        with suppress(OSError):
            link = Path(f"/proc/self/fd/{ours}")
            if int(procfs.parse_fields(procfs.text(f"/proc/self/fdinfo/{ours}"))["mnt_id"]) in mounts:
                yield fd, OpenedFile(str(link.readlink()), os.fstat(ours).st_ino, fcntl(ours, F_GETFL))
