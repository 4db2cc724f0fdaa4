"""A tree as preflight sees it, written by hand."""

from __future__ import annotations

from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Process, Tree

NAMESPACES = (("pid", 1), ("mnt", 2), ("net", 3), ("ipc", 4), ("uts", 5), ("user", 6), ("cgroup", 7), ("time", 8))
ROOT = Process(
    pid=100,
    ppid=1,
    pgid=100,
    sid=100,
    comm="trainer",
    state="sleeping",
    start=1000,
    threads=(100,),
    ns_pids=(100,),
    tracer=0,
    uids=(0, 0, 0, 0),
    gids=(0, 0, 0, 0),
    namespaces=NAMESPACES,
    is_kernel_thread=False,
)
PLAIN = Observed(
    tree=Tree(ROOT, (ROOT,)),
    descriptors=(),
    deleted_maps=(),
    connections=(),
    datagram_sockets=frozenset(),
    own_namespaces=NAMESPACES,
    own_capabilities=frozenset(range(41)),
    memory=0,
)
"""Nothing stands against a dump of it."""
