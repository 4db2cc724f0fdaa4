"""Record the attributes of a tree that CRIU does not save, as `crckpt.preflight.attribute_record` lists them.

Most are read from outside. Some are known only to the process itself: crckpt makes a system call in one of its threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.helper.calls.remote_calls import Order, carry_out
from crckpt.host import proc
from crckpt.host.attributes import descriptors, sockets, tasks
from crckpt.host.network.packet_filter import PacketRules, read_packet_rules
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import procfs
from crckpt.host.proc.status import read_status
from crckpt.host.process.cgroups import read_cgroups
from crckpt.preflight.attribute_record import UNASKED, AttributeRecord, AttributeValue, ControlGroup, ProcessRecord

Members = tuple[tuple[str, str], ...]
"""The control groups of a process: for each hierarchy, its controllers and the path of the group."""

# CRIU saves only `current` and `sockcreate` (criu/lsm.c).
_LABELS = ("exec", "fscreate", "keycreate")


class Answers(Struct, frozen=True):
    """What processes answered, by PID, and the rules of the packet filter at that time."""

    of_processes: dict[int, dict[str, AttributeValue]] = {}
    rules: PacketRules = PacketRules()


def ask(tree: proc.Tree, *, everyone: bool) -> tuple[Answers, tuple[Finding, ...]]:
    """Read from inside each process what only it knows; unless `everyone`, only where there is a hint.

    The findings name the first process whose restore will be refused, and the first that could not be asked.
    """
    rules = read_packet_rules()
    # A call stops its thread for some milliseconds: a dump after which the tree goes on makes it only where it may
    # matter.
    living = [each for each in tree.processes if each.state != "zombie" and (everyone or _has_hint(each.pid))]
    # No hint is an answer, too. A process that comes later has none.
    asked: dict[int, dict[str, AttributeValue]] = {each.pid: {} for each in tree.processes}
    if not living:
        return Answers(asked, rules), ()
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
    return Answers(asked, rules), tuple(findings.values())


def record_descriptors(observed: Observed) -> object:
    """The state of timers and terminals, as JSON knows it. Read it while the tree is frozen, if that is possible."""
    inside = {process.pid: process.ns_pids[-1] for process in observed.tree.processes}
    return msgspec.to_builtins(tuple(descriptors.read_descriptors(observed.descriptors, inside)))


def record(root: proc.Process, asked: Answers, *, is_frozen: bool = False) -> AttributeRecord:
    """The attributes of the tree below `root` as it is now, for the details of its checkpoint."""
    groups: dict[Members, int] = {}
    processes: list[ProcessRecord] = []
    were_asked: list[int] = []
    read_sockets: list[sockets.SocketRecord] = []
    known: set[int] = set()
    for process in proc.read_tree(root).processes:
        with suppress(OSError):
            read = _read_process(process, asked.of_processes.get(process.pid, {}), groups)
            # Work on a copy: if this process is left out below, the next one that has its sockets must still read them.
            numbers = set(known)
            own_sockets = tuple(
                sockets.read_sockets(process.pid, process.ns_pids[-1], process.uids[1], numbers, is_frozen=is_frozen)
            )
            # Else this may be of another process that has got its PID.
            if process.identity.keeps_pid:
                processes.append(read)
                were_asked.extend(process.ns_pids[-1:] if process.pid in asked.of_processes else ())
                read_sockets.extend(own_sockets)
                known = numbers
    return AttributeRecord(
        cpus=tuple(sorted(tasks.online_cpus())),
        processes=tuple(processes),
        groups=tuple(
            tuple(ControlGroup(*place, asked.rules.find_restrictions(*place)) for place in members)
            for members in groups
        ),
        asked=tuple(were_asked),
        sockets=tuple(read_sockets),
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
