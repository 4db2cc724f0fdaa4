"""One look at a live tree, as a value that the preflight judges."""

from __future__ import annotations

from msgspec import Struct

from crckpt.host import network, proc


class Observed(Struct, frozen=True):
    """What was seen of a live tree and of ourselves, at one time, without stopping it.

    `deleted_maps` are (path, bytes, links) of mapped files whose name is gone, `own_namespaces` ours by kind, `memory`
    is how many bytes of the tree's memory are in no file.
    """

    tree: proc.Tree
    descriptors: tuple[proc.Descriptor, ...]
    deleted_maps: tuple[tuple[str, int, int], ...]
    connections: tuple[network.Connection, ...]
    datagram_sockets: frozenset[int]
    own_namespaces: tuple[tuple[str, int], ...]
    own_capabilities: frozenset[int]
    memory: int


def observe(root: proc.Process, own: proc.Process) -> Observed:
    """Look at the tree below `root`; `own` is crckpt's process."""
    tree = proc.read_tree(root)
    descriptors = tuple(found for pid in tree.pids for found in proc.descriptors(pid))
    with_sockets = {found.pid for found in descriptors if found.target.startswith("socket:")}
    return Observed(
        tree=tree,
        descriptors=descriptors,
        deleted_maps=tuple(found for pid in tree.pids for found in proc.mapped_deleted_files(pid)),
        connections=network.tcp_connections(sorted(with_sockets)) if with_sockets else (),
        datagram_sockets=network.unix_datagram_sockets(root.pid) if with_sockets else frozenset(),
        own_namespaces=own.namespaces,
        own_capabilities=proc.effective_capabilities(),
        memory=sum(proc.memory(pid) for pid in tree.pids),
    )
