"""Check what CRIU's code in a process has reported of it: a program can forge it, and a restore does it as root.

That code runs in the memory of the process, where its other threads, and other processes of its user, can write. So
what gives a right, or may do harm outside the tree, must be what the kernel says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from crckpt.errors import DumpFailed
from crckpt.host import proc
from crckpt.host.proc.procfs import DELETED
from crckpt.host.proc.task_states import FileOwner, OpenedFile, ProcessState, TaskStates
from crckpt.images.core import CAPABILITIES, Rights, excess_rights, read_rights, read_securebits
from crckpt.images.files import read_files, read_signal_owners
from crckpt.images.mm import read_dumpable
from crckpt.images.other_files import Fifo
from crckpt.images.processes import ImageDescriptor, read_descriptors, read_directories, read_ids, read_pstree
from crckpt.images.regfile import GHOST, PROCESS, RegularFile, ghost_image, read_ghost, read_remaps
from crckpt.images.tty import Terminal
from crckpt.ops.dump.details import Answers

_FIND: Final = "find the process of its user that did this, and end it"
_PERMITTED: Final = list(CAPABILITIES).index("CapPrm")
_SETPCAP: Final = 1 << 8  # linux/capability.h
_SECUREBITS: Final = "securebits"
# What tracking/preload/sessions.c says leads a session from outside the tree's PID namespace.
_LEADER: Final = 1
# To read, to write, or only to name the file (open(2)).
_ACCESS: Final = os.O_ACCMODE | os.O_PATH
_NO_FILE: Final = OpenedFile("no file", 0, 0)
# A program that is executed loses this one (capabilities(7)).
_KEEP_CAPS: Final = 1 << 4


def find_securebits(tree: proc.Tree, answers: Answers) -> dict[int, int]:
    """The securebits of the processes that were asked, by their own PIDs."""
    by_pid = {process.pid: process.ns_pids[-1] for process in tree.processes}
    return {
        by_pid[pid]: answer[_SECUREBITS][0]
        for pid, answer in answers.of_processes.items()
        if pid in by_pid and answer.get(_SECUREBITS)
    }


def check_reported(images: Path, states: TaskStates, securebits: Mapping[int, int]) -> None:
    """Raise DumpFailed if the images say something else than the kernel, or a task was killed while it was frozen.

    `states` are what the kernel says of the frozen tasks, `securebits` those that processes had, by PID.
    """
    rights, processes = states.rights, states.processes
    _check_rights(images, rights, securebits)
    _check_signal_owners(images, states)
    _check_files(images, processes)
    tree = images / "pstree.img"
    for entry in read_pstree(tree.read_bytes(), tree.name):
        if (state := processes.get(entry.pid)) is None:
            continue
        memory, places = images / f"mm-{entry.pid}.img", images / f"fs-{entry.pid}.img"
        umask = read_directories(places.read_bytes(), places.name).umask if places.exists() else None
        # Another user's program may execute as this one: its memory is then not for its user.
        is_open = memory.exists() and read_dumpable(memory.read_bytes(), memory.name) == 1 and not state.is_dumpable
        differences = {
            "list of threads": {*entry.threads} != state.threads,
            "process group": entry.pgid != state.pgid,
            "session": entry.sid != (state.sid or _LEADER),
            "umask": umask not in (None, state.umask),
            "dumpable flag": is_open,
        }
        for what in (what for what, differs in differences.items() if differs):
            raise DumpFailed(
                f"the dump failed: process {entry.pid} told CRIU that it has another {what} than it has: another "
                "process changed its memory during the dump",
                hint=_FIND,
            )


def _check_signal_owners(images: Path, states: TaskStates) -> None:
    """Raise DumpFailed if a descriptor would send signals to others, or with the rights of others, than it does."""
    # CRIU sets F_SETOWN as root, with the user ids that were reported.
    holders: dict[int, list[tuple[int, int]]] = {}
    for pid, descriptor in _find_descriptors(images):
        holders.setdefault(descriptor.file_id, []).append((pid, descriptor.fd))
    files = images / "files.img"
    content = files.read_bytes() if files.exists() else b""
    owners = tuple(read_signal_owners(content, files.name)) if content else ()
    opened = read_files(content, files.name) if owners else ()
    # The path of a named pipe or terminal is another entry, with the same owner, and nobody's descriptor.
    named = {file.file_id: file.id for file in opened if isinstance(file, Fifo | Terminal)}
    for owner in owners:
        places = holders.get(named.get(owner.file_id, owner.file_id), [])
        known = [(states.processes[pid].owners, fd) for pid, fd in places if pid in states.processes]
        said = [owners.get(fd) for owners, fd in known if owners is not None]
        uids = {uid for pid, _ in places if pid in states.rights for uid in states.rights[pid].uids}
        if said and any(each != FileOwner(owner.kind, owner.pid, owner.uids) for each in said):
            raise DumpFailed(
                f"the dump failed: a process told CRIU that a descriptor sends signals to process {owner.pid} with the "
                f"rights of user {owner.uids[1]}, which it does not: another process changed its memory during the "
                "dump",
                hint=_FIND,
            )
        if excess := set(owner.uids) - uids:
            raise DumpFailed(
                f"the dump failed: a descriptor would send signals to process {owner.pid} with the rights of user "
                f"{min(excess)}, which no process of the tree that has it is: it came from another program, or another "
                "process changed the memory of its process during the dump",
                hint="let the program set the owner of its signals itself: F_SETOWN, fcntl(2)",
            )


def _check_files(images: Path, processes: Mapping[int, ProcessState]) -> None:
    """Raise DumpFailed if a descriptor of a user's process leads elsewhere, or allows more, than the kernel says."""
    # CRIU opens the path of the file that the process has sent, as root, with the flags that the kernel shows for the
    # number: a file that the process may only read would become writable, and one that it may only name, readable.
    known = {pid: state.files for pid, state in processes.items() if state.files is not None}
    files = images / "files.img"
    if not known or not files.exists():
        return
    image = images / "remap-fpath.img"
    removed = read_remaps(image.read_bytes(), image.name) if image.exists() else {}
    opened = read_files(files.read_bytes(), files.name)
    named = {file.id: file for file in opened if isinstance(file, RegularFile)}
    # The path of a named pipe is that of another entry.
    entries = {file.id: file.file_id or 0 for file in opened if isinstance(file, Fifo)}
    for pid, descriptor in _find_descriptors(images):
        entry, fd = entries.get(descriptor.file_id, descriptor.file_id), descriptor.fd
        file, remap = named.get(entry), removed.get(entry)
        if file is None or pid not in known:
            continue
        path, found = file.path, known[pid].get(fd, _NO_FILE)
        # What the images have may end so already; or that is the end of the file's own name.
        gone = (path, path + DELETED) if path.endswith(DELETED) else (path + DELETED,)
        # The kernel may say both of what is in a process's own /proc. NFS gives a removed file another name.
        is_both = remap is not None and (remap.kind == PROCESS or Path(path).name.startswith(".nfs"))
        is_other = found.path not in ((path, *gone) if is_both else (path,) if remap is None else gone)
        is_other_content = False
        if remap is not None and remap.kind == GHOST:
            # It has no path: the content in the images must be that of the same inode.
            ghost = images / ghost_image(remap.target)
            is_other_content = read_ghost(ghost.read_bytes(), ghost.name).inode not in (None, found.inode)
        differences = {
            "": is_other,
            " with another inode": is_other_content,
            " opened for other access": bool((file.flags ^ found.flags) & _ACCESS),
        }
        for how in (how for how, differs in differences.items() if differs):
            raise DumpFailed(
                f"the dump failed: process {pid} told CRIU that its descriptor {fd} is {path}, but it is "
                f"{found.path}{how}: another process changed its memory or descriptors, or removed the file, "
                "during the dump",
                hint=_FIND,
            )


def _find_descriptors(images: Path) -> Iterator[tuple[int, ImageDescriptor]]:
    """Find the descriptors of each process, by its PID."""
    for image in images.glob("ids-*.img"):
        table = images / f"fdinfo-{read_ids(image.read_bytes(), image.name).files}.img"
        for descriptor in read_descriptors(table.read_bytes(), table.name) if table.exists() else ():
            yield int(image.stem.removeprefix("ids-")), descriptor


def _check_rights(images: Path, rights: Mapping[int, Rights], securebits: Mapping[int, int]) -> None:
    """Raise DumpFailed if a thread would come back with rights that it did not have when the tree was frozen.

    Or if it was killed before these were read.
    """
    for tid, image in sorted((int(found.stem.removeprefix("core-")), found) for found in images.glob("core-*.img")):
        content = image.read_bytes()
        saved = read_rights(content, image.name)
        if saved is None:  # a zombie
            continue
        if (had := rights.get(tid)) is None:
            raise DumpFailed(
                f"the dump failed: task {tid} was killed while it was frozen, before all was known of it",
                hint="if other processes of the tree still run, dump these",
            )
        excess = [*excess_rights(saved, had)]
        # With that capability it may have dropped them itself, since it was asked.
        bits = 0 if had.capabilities[_PERMITTED] & _SETPCAP else securebits.get(tid, 0) & ~_KEEP_CAPS
        if bits and bits & ~read_securebits(content, image.name):
            excess.append("a root that it is not (securebits)")
        if excess:
            raise DumpFailed(
                f"the dump failed: task {tid} told CRIU that it has the rights of {', '.join(excess)}, which it does "
                "not have: another process changed its memory during the dump",
                hint=_FIND,
            )
