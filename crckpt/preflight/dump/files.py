"""Check the files and maps of a tree before a dump: unreachable paths, lost watches, deleted files, shared locks."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor
from crckpt.host.proc.procfs import DELETED
from crckpt.preflight.dump.namespaces import shares_namespace
from crckpt.preflight.kernel_files import make_judge

_MOST_NAMED = 5
# A mark without an inode.
_OF_FILE_SYSTEM = re.compile(r"^fanotify sdev:", re.MULTILINE)
# How the paths of deleted maps begin that are memory, not files.
_NO_FILES = ("/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/secretmem", "/anon_hugepage")

# Keys of causes by why a file is not reached.
_UNREACHABLE = {"mount": "mount-lookup", "hidden": "file-hidden", "long": "long-path", "queue": "message-queue"}
# Keys of causes by the path of a map.
_UNKNOWN_MAPS = {"/secretmem": "secretmem", "anon_inode:[io_uring]": "io-uring"}


def judge_files(observed: Observed, *, stop: bool) -> Iterator[Finding]:
    """Find files and watches that CRIU cannot find again by their path, and what a restore loses or may fail on."""
    # CRIU looks for the file by its path, and refuses any other file there (criu/files-reg.c:1790 and 1444).
    left: set[int] = set()
    for file in observed.unreachable_files:
        if file.why == "mount" and file.fd < 0:
            # A process that has left its mounts has all its libraries there.
            if file.pid not in left:
                yield cause("mount-lookup-mapped").finding(path=file.path)
            left.add(file.pid)
        else:
            values = {"pid": file.pid, "holder": f" of PID {file.pid}"}
            yield cause(_UNREACHABLE[file.why]).finding(path=file.path, fd=file.fd, **values)
    if observed.slow_epolls is not None:
        largest, count = observed.slow_epolls
        yield cause("epolls-slow").finding(pid=largest.pid, fd=largest.fd, count=count)
    for epoll in observed.lost_epolls:
        if epoll.builder:
            yield cause("epoll-elsewhere").finding(pid=epoll.pid, builder=epoll.builder)
        else:
            yield cause("epoll-closed").finding(pid=epoll.pid)
    if observed.lost_watches:
        yield cause("watch").finding()
    yield from _judge_opened(observed)
    yield from _find_losses(observed, stop=stop)
    yield from _find_kernel_files(observed)


def _judge_opened(observed: Observed) -> Iterator[Finding]:
    for descriptor in observed.descriptors:
        if descriptor.target == "anon_inode:[fanotify]" and _OF_FILE_SYSTEM.search(descriptor.info):
            yield cause("watch-file-system").finding(pid=descriptor.pid, fd=descriptor.fd)
        # CRIU takes it for a socket (criu/files.c, dump_one_file), and cannot read its options.
        if stat.S_ISSOCK(descriptor.mode) and descriptor.flags & os.O_PATH:
            yield cause("socket-file").finding(path=descriptor.target, fd=descriptor.fd, pid=descriptor.pid)
        if descriptor.flags & os.O_TMPFILE == os.O_TMPFILE and not descriptor.links:
            yield cause("unnamed-file").finding(path=descriptor.target, fd=descriptor.fd, pid=descriptor.pid)


def judge_maps(observed: Observed) -> Iterator[Finding]:
    """Find maps that CRIU cannot save (criu/proc_parse.c, handle_vma and vma_get_mapfile), and what a restore loses."""
    for mapping in observed.unsavable_maps:
        if mapping.kind == "device":
            yield cause("device-map").finding(pid=mapping.pid, address=f"{mapping.start:x}")
        elif mapping.kind in ("uprobes", "vdso-changed"):
            yield cause(mapping.kind).finding(pid=mapping.pid)
        elif mapping.kind == "vdso":
            yield cause("vdso-unmapped").finding(pid=mapping.pid, map=mapping.path)
        # CRIU saves it with the whole IPC namespace, which must be the tree's own (criu/cr-dump.c:477).
        elif mapping.kind == "sysv" and shares_namespace(observed, "ipc"):
            yield cause("sysv-shm").finding()
        elif mapping.kind == "sysv-part" and not shares_namespace(observed, "ipc"):
            yield cause("sysv-shm-part").finding(id=mapping.path)
        elif mapping.kind == "unknown":
            key = _UNKNOWN_MAPS.get(mapping.path.removesuffix(DELETED))
            yield cause(key).finding() if key else cause("unknown-mapping").finding(path=mapping.path)
    # A restore loses the seal or the way of locking; the kernel begins a new ring of a packet socket at its start, and
    # the program waits where it was.
    for kind, key in (("sealed", "sealed"), ("on-fault", "on-fault"), ("ring", "packet-ring")):
        first = {mapping.pid: mapping for mapping in reversed(observed.unsavable_maps) if mapping.kind == kind}
        for pid, mapping in sorted(first.items()):
            start = {"start": f"{mapping.start:x}"} if kind != "ring" else {}
            yield cause(key).finding(pid=pid, **start)


def _find_losses(observed: Observed, *, stop: bool) -> Iterator[Finding]:
    # CRIU links such a file to a new name. If the tree keeps running, it removes that name after the dump
    # (criu/cr-dump.c, delete_link_remaps), and a restore finds only other names in the same directory.
    for path in observed.unlinked if not stop else ():
        yield cause("link-remap").finding(path=path)
    if observed.volatile_files:
        paths, more = observed.volatile_files[:_MOST_NAMED], len(observed.volatile_files) - _MOST_NAMED
        yield cause("volatile-file").finding(paths=", ".join(paths) + (f" and {more} more" if more > 0 else ""))
    for file in observed.removed_files:
        names = ", ".join(file.attributes[:_MOST_NAMED])
        yield cause("removed-attributes").finding(path=file.path, fd=file.fd, pid=file.pid, names=names)
    for pid, count in Counter(epoll.pid for epoll in observed.unexamined_epolls).items():
        yield cause("epolls-unexamined").finding(pid=pid, count=count)
    for lock in observed.shared_locks:
        yield cause("lock-shared").finding(pid=lock.pid, fd=lock.fd, path=lock.path, other=lock.other)


def _find_kernel_files(observed: Observed) -> Iterator[Finding]:
    """Find files of the kernel for which a restore is refused without --allow-weaker."""
    processes = {process.pid: process for process in observed.tree.processes}
    undumpable = {pid for pid, state in observed.states.processes.items() if not state.is_dumpable}
    parents = {
        process.ns_pids[-1]: processes[process.ppid].ns_pids[-1]
        for process in observed.tree.processes
        if process.ppid in processes
    }
    rights, ours = observed.states.rights, observed.own_capabilities
    judges = {
        pid: make_judge(process.ns_pids[-1], rights, undumpable, ours, parents) for pid, process in processes.items()
    }
    # Whoever receives what waits in a socket: /proc does not say what it is.
    for found in observed.in_flight if any(judges.values()) else ():
        comm = processes[found.pid].comm
        yield cause("descriptors-in-flight").finding(pid=found.pid, comm=comm, fd=found.fd)
    for held in observed.kernel_files:
        process, judge = processes[held.pid], judges[held.pid]
        if judge is not None and not judge(held.file):
            yield cause("kernel-file-open").finding(pid=held.pid, comm=process.comm, fd=held.fd, path=held.file.path)


def count_deleted_bytes(observed: Observed, is_in_memory: Callable[[str], bool]) -> int:
    """Return how many bytes of deleted open files CRIU copies from disks. Mapped ones in memory count as memory."""
    mapped = {path for path, *_ in observed.deleted_maps if is_in_memory(path)}
    opened = (found for found in observed.descriptors if is_deleted_file(found) and not found.links)
    return sum(size for _, size in {(found.target, found.allocated) for found in opened if found.target not in mapped})


def find_deleted_files(observed: Observed) -> Iterator[tuple[str, int, int]]:
    """Return (path, bytes, links) of deleted files that the tree has open or mapped."""
    yield from ((found.target, found.most, found.links) for found in observed.descriptors if is_deleted_file(found))
    yield from (found for found in observed.deleted_maps if not found[0].startswith(_NO_FILES))


def is_deleted_file(descriptor: Descriptor) -> bool:
    """Return whether the descriptor is of a regular file that lost the name by which it was opened."""
    return (
        # The kernel adds this suffix. A memfd always has it, because it never had a name.
        descriptor.target.endswith(DELETED)
        and stat.S_ISREG(descriptor.mode)
        and not descriptor.target.startswith("/memfd:")
    )
