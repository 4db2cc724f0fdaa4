"""Dump plans for trees written by hand."""

from __future__ import annotations

import os
import stat
from typing import Literal

import observations
from msgspec.structs import replace
from observations import NAMESPACES, ROOT

from crckpt.host.observe.sockets import TcpConnection
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor, Process, Tree
from crckpt.preflight.dump.checks import DumpPlan, plan_dump

ALL_CAPABILITIES = frozenset(range(41))
CAP_SYS_RESOURCE = 24
CHILD = replace(ROOT, pid=101, ppid=100, comm="worker", threads=(101,), ns_pids=(101,))
FILE = Descriptor(
    pid=100,
    fd=3,
    target="/srv/data",
    mode=stat.S_IFREG | 0o644,
    size=10,
    links=1,
    flags=os.O_RDWR,
    pos=0,
    info="pos:\t0\n",
)
DELETED_FILE = replace(FILE, target="/srv/gone (deleted)", links=0)
READS, WRITES = (
    replace(FILE, target="pipe:[55]", mode=stat.S_IFIFO, flags=flags) for flags in (os.O_RDONLY, os.O_WRONLY)
)
CONNECTION = TcpConnection(100, 7, "127.0.0.1:80", "127.0.0.1:4000", "ESTABLISHED")
TWO_PROCESSES = replace(observations.PLAIN, tree=Tree(ROOT, (ROOT, CHILD)), descriptors=(FILE,))
"""A process with a child and an open file: nothing stands against a dump of it."""


def plan(
    observation: Observed, tcp: Literal["keep", "close"] | None = None, *, stop: bool = False, nftables: bool = True
) -> DumpPlan:
    return plan_dump(observation, tcp, stop=stop, locks_by_nftables=nftables, names={900: "gdb", 901: "criu"})


def with_files(*descriptors: Descriptor) -> Observed:
    return replace(TWO_PROCESSES, descriptors=descriptors)


def keys(findings: object) -> list[str]:
    assert isinstance(findings, tuple)
    return [finding.key for finding in findings]


def why(found: DumpPlan, option: str) -> str:
    (reason,) = (reason.why for reason in found.reasons if reason.option == option)
    return reason


def with_tree(root: Process, *others: Process) -> Observed:
    return replace(TWO_PROCESSES, tree=Tree(root, (root, *others)))


def in_namespaces(process: Process, **inodes: int) -> Process:
    return replace(process, namespaces=tuple((kind, inodes.get(kind, inode)) for kind, inode in NAMESPACES))


def as_uid(process: Process, real: int, *others: int) -> Process:
    """Run the process as this user; `others`: the effective and saved ids if they differ."""
    ids = (real, *(others or (real, real)), real)
    return replace(process, uids=ids, gids=ids)


def without_cap(observation: Observed) -> Observed:
    return replace(observation, own_capabilities=ALL_CAPABILITIES - {CAP_SYS_RESOURCE})


def blocker_keys(observation: Observed) -> list[str]:
    return keys(plan(observation).blockers)
