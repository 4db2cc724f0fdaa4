"""The facts that a checkpoint records in addition to CRIU's images, for `show` and for the preflight of a restore.

Some attributes of a process (`crckpt.preflight.attribute_record` lists all) are known only to itself: for them crckpt
makes a system call in one of its threads.
`crckpt.ops.restore.open_files` checks that a restored tree has the recorded files open, and no others.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from crckpt.causes import Finding, cause, preflight_refusal
from crckpt.criu.engine import run_id
from crckpt.helper.calls.remote_calls import Order, carry_out
from crckpt.host import machine, proc
from crckpt.host.attributes import tasks
from crckpt.host.attributes.descriptors import read_descriptors
from crckpt.host.attributes.multicast import Group, GroupSearch
from crckpt.host.attributes.pipes import PipeRecord, read_pipes
from crckpt.host.attributes.sockets import SocketRecord, read_sockets
from crckpt.host.disk.checked_files import digest_head, read_head
from crckpt.host.disk.users import LinkTarget, read_link_target
from crckpt.host.network.packet_filter import PacketRules, read_packet_rules
from crckpt.host.observe.descriptors import find_closed_pipes
from crckpt.host.observe.tree import Observed
from crckpt.host.opened import as_socket
from crckpt.host.proc import procfs
from crckpt.host.proc.fd import read_link
from crckpt.host.proc.maps import find_mapped_files
from crckpt.host.proc.net import has_packet_sockets
from crckpt.host.proc.status import read_status
from crckpt.host.process.cgroups import read_cgroups
from crckpt.host.process.pidfd import borrow_each
from crckpt.host.program import read_program
from crckpt.model import Task
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.plan import PlannedDump
from crckpt.preflight.attribute_record import UNASKED, AttributeRecord, AttributeValue, ControlGroup, ProcessRecord
from crckpt.preflight.dump.sockets import loses
from crckpt.store import NewCheckpoint

Members = tuple[tuple[str, str], ...]
"""The control groups of a process: for each hierarchy, its controllers and the path of the group."""

# Time for others' multicast groups, of which there may be very many.
_FINDS_GROUPS_FOR_S, _FINDS_GROUPS_FROZEN_FOR_S = 3.0, 0.2
# CRIU saves only `current` and `sockcreate` (criu/lsm.c).
_LABELS = ("exec", "fscreate", "keycreate")


class Answers(Struct, frozen=True):
    """What processes answered, by PID; the rules of the packet filter and the tree's multicast groups at that time."""

    of_processes: dict[int, dict[str, AttributeValue]] = {}
    rules: PacketRules = PacketRules()
    groups: tuple[Group, ...] = ()


def ask(observed: Observed, *, everyone: bool) -> tuple[Answers, tuple[Finding, ...]]:
    """Read from inside each process what only it knows; unless `everyone`, only where there is a hint.

    The findings name the first process whose restore will be refused, and the first that could not be asked.
    """
    tree, rules = observed.tree, read_packet_rules()
    joined, unknown = _find_groups(observed)
    # A call stops its thread for some milliseconds: a dump after which the tree goes on makes it only where it may
    # matter.
    living = [each for each in tree.processes if each.state != "zombie" and (everyone or _has_hint(each.pid))]
    # No hint is an answer, too. A process that comes later has none.
    asked: dict[int, dict[str, AttributeValue]] = {each.pid: {} for each in tree.processes}
    if not living:
        return Answers(asked, rules, joined), unknown
    findings: dict[str, Finding] = {}
    answers = carry_out([Order(each.pid, each.pid, "ask", process=each.identity) for each in living])
    for process, answer in zip(living, answers, strict=True):
        named = {"pid": process.pid, "comm": process.comm}
        if answer.why and proc.read_process(process.pid) is not None:
            findings.setdefault("not-asked", cause("not-asked").finding(why=answer.why, **named))
        elif answer.values.get("landlock"):
            findings.setdefault("landlock", cause("needs-allow-weaker").finding(what="Landlock", **named))
        asked[process.pid] = answer.values
        # The process may have prevented the question, to be restored without what confines it.
        if answer.why and _has_hint(process.pid, ("NoNewPrivs", "Seccomp")):
            asked[process.pid] = {UNASKED: (1,)}
    return Answers(asked, rules, joined), (*findings.values(), *unknown)


def _find_groups(observed: Observed) -> tuple[tuple[Group, ...], tuple[Finding, ...]]:
    """Find the multicast groups of the tree, and the first socket of which that are perhaps not all."""
    search, unknown = GroupSearch(_FINDS_GROUPS_FOR_S), []
    for each in observed.sockets:
        if each.uses_option_memory and not each.is_tcp:
            for fd, ours in borrow_each(each.pid, (each.fd,)):
                with suppress(OSError), as_socket(ours) as held:  # by now it is another socket
                    if search.find(each.pid, held)[1]:
                        unknown.append(loses(each.pid, fd, proc.title(each.pid), "groups"))
    return search.joined, tuple(unknown[:1])


def read_details(dump: PlannedDump, answers: Answers, *, is_frozen: bool = False) -> dict[str, object]:
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
    record = record_attributes(observed.tree.root, answers, is_frozen=is_frozen)
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
    inside = {process.pid: process.ns_pids[-1] for process in tree.processes}
    links = {f"/proc/{each.pid}/fd/{each.fd}" for each in descriptors if each.flags & os.O_ACCMODE != os.O_RDONLY}
    links |= {link for pid in tree.pids for link in find_mapped_files(pid).values() if _is_writable(link)}
    read = [found for link in links if (found := read_link(link)) is not None]
    return {
        # The state of timers and terminals.
        "descriptors": to_builtins(tuple(read_descriptors(descriptors, inside))),
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


def record_attributes(root: proc.Process, asked: Answers, *, is_frozen: bool = False) -> AttributeRecord:
    """The attributes of the tree below `root` as it is now, for the details of its checkpoint."""
    groups: dict[Members, int] = {}
    processes: list[ProcessRecord] = []
    were_asked: list[int] = []
    found: list[SocketRecord] = []
    pipes: dict[int, PipeRecord] = {}
    known: set[int] = set()
    processes_now = proc.read_tree(root).processes
    # What root alone has made, CRIU makes as root again.
    has_users = any(any(process.uids) for process in processes_now)
    # The groups that were found before the freeze are tried first.
    search = GroupSearch(_FINDS_GROUPS_FROZEN_FOR_S if is_frozen else _FINDS_GROUPS_FOR_S, asked.groups)
    for process in processes_now:
        with suppress(OSError):
            read = _read_process(process, asked.of_processes.get(process.pid, {}), groups)
            # Work on a copy: if this process is left out below, the next one that has its sockets must still read them.
            numbers = set(known)
            own_sockets = tuple(
                read_sockets(
                    process.pid, process.ns_pids[-1], numbers, search, everything=has_users, is_frozen=is_frozen
                )
            )
            own_pipes = {each.inode: each for each in read_pipes(process.pid)} if has_users else {}
            # Else this may be of another process that has got its PID.
            if process.identity.keeps_pid:
                processes.append(read)
                were_asked.extend(process.ns_pids[-1:] if process.pid in asked.of_processes else ())
                found.extend(own_sockets)
                pipes |= own_pipes
                known = numbers
    return AttributeRecord(
        cpus=tuple(sorted(tasks.online_cpus())),
        processes=tuple(processes),
        groups=tuple(
            tuple(ControlGroup(*place, asked.rules.find_restrictions(*place)) for place in members)
            for members in groups
        ),
        asked=tuple(were_asked),
        sockets=tuple(found),
        pipes=tuple(pipes.values()),
        devices=dict(socket.if_nameindex()) if has_packet_sockets(root.pid) else {},
    )


def _read_process(process: proc.Process, asked: dict[str, AttributeValue], groups: dict[Members, int]) -> ProcessRecord:
    pid, threads, labels = process.pid, {}, {}
    for tid in process.threads:
        with suppress(OSError):
            inside = tid if len(process.ns_pids) == 1 else proc.inner_tid(pid, tid)
            threads[inside] = dict(_read(tasks.OF_THREAD.items(), tid))
    for name in _LABELS:
        with suppress(OSError):
            labels[name] = procfs.text(f"/proc/{pid}/attr/{name}").strip("\0\n")
    return ProcessRecord(
        pid=process.ns_pids[-1],
        threads=threads,
        values=dict(_read(tasks.OF_PROCESS.items(), pid)) | asked,
        groups=groups.setdefault(read_cgroups(pid), len(groups)),
        labels={name: label for name, label in labels.items() if label},
        has_own_groups=proc.namespace(pid, "cgroup") != proc.namespace("self", "cgroup"),
    )


def _read(readers: Iterable[tuple[str, tasks.Reader]], number: int) -> Iterator[tuple[str, AttributeValue]]:
    """Read each value that this kernel has."""
    for name, reader in readers:
        # ValueError: this kernel formats the file differently.
        with suppress(OSError, ValueError):
            yield name, reader(number)


def _has_hint(pid: int, names: tuple[str, ...] = ("NoNewPrivs", "Seccomp", "VmLck")) -> bool:
    with suppress(OSError):
        status = read_status(pid)
        return any(status.get(name, "0").split()[0] != "0" for name in names)
    return False
