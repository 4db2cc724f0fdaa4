"""The facts that a checkpoint records in addition to CRIU's images, for `show` and for the preflight of a restore.

`crckpt.ops.restore.open_files` checks that a restored tree has the recorded files open, and no others.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from crckpt.causes import preflight_refusal
from crckpt.criu.engine import run_id
from crckpt.host import machine, proc
from crckpt.host.disk.checked_files import digest_head, read_head
from crckpt.host.disk.users import LinkTarget, read_link_target
from crckpt.host.observe.pipes import find_closed_pipes
from crckpt.host.proc.fd import read_link
from crckpt.host.proc.maps import find_mapped_files
from crckpt.host.program.program import read_program
from crckpt.model import Task
from crckpt.ops.dump import attributes
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.plan import PlannedDump
from crckpt.preflight.dump.sockets import loses
from crckpt.store import NewCheckpoint


def read_details(dump: PlannedDump, answers: attributes.Answers, *, is_frozen: bool = False) -> dict[str, object]:
    """Read what CRIU's images lack, some of it secret: command lines, directories, sizes of append-only files.

    And the attributes of processes and threads that CRIU does not save, and which files are open. Of a tree that
    `is_frozen`, raises PreflightRefused if a socket of it holds now what the user has not agreed to lose.
    """
    target, observed = dump.target, dump.target.observed
    processes = [
        # The PID is that in its own namespace, as in CRIU's images.
        {"pid": process.ns_pids[-1], "command_line": words, "directory": directory, "uids": process.uids}
        for process, words, directory in proc.read_commands(observed.tree)
    ]
    logs = [found for found in observed.descriptors if found.is_append_only]
    # A position beyond the end shows that the log was truncated: then no position at the freeze means anything.
    truncated = {found.target for found in logs if found.pos > found.size}
    appended = {found.target: found.size for found in logs if found.target not in truncated}
    record = attributes.record(observed.tree.root, answers, is_frozen=is_frozen)
    # A client that resets its connection at this moment loses no more than one whose connection is closed.
    kept = [found for found in record.sockets if not (found.is_tcp and target.request.tcp == "close")]
    comms = {process.ns_pids[-1]: process.comm for process in observed.tree.processes}
    lost = [loses(found.pid, found.fd, comms.get(found.pid, "?"), loss) for found in kept for loss in found.losses]
    if lost and is_frozen and not target.request.force:
        raise preflight_refusal(lost)
    # The root of the tree of this job that was tracked last: so a later dump can say why it is full.
    is_tracked = dump.lineage is not None and dump.lineage.tracks
    tracked_root = observed.tree.root.identity if is_tracked else dump.tracked_before
    # The tree may have executed another program since it was examined, but its unit is still the same.
    root = observed.tree.root
    program = read_program(root.pid, root.comm, target.program.unit)
    return {
        "schema": 1,
        "processes": processes,
        "program": asdict(program),
        "root": to_builtins(root.identity),
        # What starts later may be this program, restored.
        "uptime_ticks": proc.uptime_ticks(),
        "append_sizes": appended,
        "cpu_seconds": proc.cpu_seconds(observed.tree),
        "attributes": to_builtins(record, str_keys=True),
        "tracked_root": None if tracked_root is None else to_builtins(tracked_root),
        **record_files(observed.tree, observed.descriptors),
        **read_frozen_details(target),
    }


def read_frozen_details(target: DumpTarget) -> dict[str, object]:
    """Read the details that the tree changes all the time: again while it is frozen, if that is possible."""
    tree, descriptors = target.observed.tree, target.observed.descriptors
    links = {f"/proc/{each.pid}/fd/{each.fd}" for each in descriptors if each.flags & os.O_ACCMODE != os.O_RDONLY}
    links |= {link for pid in tree.pids for link in find_mapped_files(pid).values() if _is_writable(link)}
    read = [found for link in links if (found := read_link(link)) is not None]
    return {
        "descriptors": attributes.record_descriptors(target.observed),
        # When files that the tree can write were written last: by the clock of their own server.
        "file_times": {path: status.st_mtime for path, status in read if stat.S_ISREG(status.st_mode)},
    }


def describe_checkpoint(
    dump: PlannedDump, log: str, details: dict[str, object], moment: datetime, frozen_ms: float, dump_ms: float
) -> NewCheckpoint:
    """Describe the checkpoint, while the tree is frozen or just after.

    `moment` is one of the freeze, `dump_ms` the time of the whole dump.
    """
    target, parent, observed = dump.target, dump.parent, dump.target.observed
    # A pipe that lost an end before the freeze has one in it. A pipe that has both ends now had them then.
    closed = sorted(observed.closed_pipes | find_closed_pipes(observed.descriptors))
    return NewCheckpoint(
        job=target.job,
        created=moment,
        host=machine.describe_host(target.criu.version, target.criu.digest),
        options=target.plan.options,
        tree=tuple(Task(p.ns_pids[-1], p.ppid, p.comm, p.threads) for p in observed.tree.processes),
        note=target.request.note,
        run_id=run_id(log),
        stopped=target.request.stop,
        frozen_ms=frozen_ms,
        dump_ms=dump_ms,
        details=json.dumps(details | {"closed_pipes": closed}, sort_keys=True).encode(),
        config_digest=target.context.config_digest,
        parent=parent.checkpoint if parent else None,
        base=parent.checkpoint_directory if parent else None,
    )


def record_files(tree: proc.Tree, descriptors: Iterable[proc.Descriptor]) -> dict[str, dict[str, Any]]:
    """Record which files the tree has open, by path: device, inode and whether for writing; and the ids of the owners.

    `file_births`: inodes and times of creation, on file systems that know them. `file_heads`: digests of the first
    bytes of files that are open for writing.
    """
    known: dict[str, set[tuple[int, int, int]]] = {}
    owners: dict[str, set[int]] = {}
    births: dict[str, set[tuple[int, int]]] = {}
    heads: dict[str, str] = {}

    def add(found: LinkTarget) -> None:
        owners.setdefault(found.path, set()).add(found.owner)
        if found.birth is not None and found.birth >= 0:
            births.setdefault(found.path, set()).add((found.inode, found.birth))

    for descriptor in descriptors:
        if descriptor.identity != (0, 0) and descriptor.target.startswith("/"):
            writes = int(descriptor.flags & os.O_ACCMODE != os.O_RDONLY)
            known.setdefault(descriptor.target, set()).add((*descriptor.identity, writes))
            link = f"/proc/{descriptor.pid}/fd/{descriptor.fd}"
            # To open a file breaks a lease on it.
            if writes and descriptor.links and stat.S_ISREG(descriptor.mode) and "LEASE" not in descriptor.info:
                heads.setdefault(descriptor.target, digest_head(read_head(link)))
            found = read_link_target(link)
            if found is not None and (found.device, found.inode) == descriptor.identity:
                add(replace(found, path=descriptor.target))
    for process in tree.processes:
        links = {f"/proc/{process.pid}/{name}": 0 for name in ("exe", "cwd", "root")}
        links |= {link: _is_writable(link) for link in find_mapped_files(process.pid).values()}
        reached = [(found, writes) for link, writes in links.items() if (found := read_link_target(link))]
        # Another process may have got its PID: its files are not the tree's.
        for found, writes in reached if process.identity.keeps_pid else ():
            known.setdefault(found.path, set()).add((found.device, found.inode, writes))
            add(found)
    return {
        "files": {path: sorted(identities) for path, identities in known.items()},
        "file_owners": {path: sorted(users) for path, users in owners.items()},
        "file_births": {path: sorted(times) for path, times in births.items()},
        "file_heads": heads,
    }


def _is_writable(link: str) -> int:
    """Return whether a mapped file was opened for writing, as the mode of its link in /proc says."""
    with suppress(OSError):
        return int(bool(os.lstat(link).st_mode & stat.S_IWUSR))
    return 0
