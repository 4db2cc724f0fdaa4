"""Check the memory maps of a tree before a dump."""

from __future__ import annotations

from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.tree import Observed
from crckpt.host.proc.smaps import UnsavableMap
from crckpt.preflight.dump.namespaces import shares_namespace

# Keys of causes by the path of the map.
_UNKNOWN = {"/secretmem": "secretmem", "anon_inode:[io_uring]": "io-uring"}


def find_blockers(observed: Observed) -> Iterator[Finding]:
    """Find maps that CRIU cannot save."""
    for mapping in observed.unsavable_maps:
        yield from _find_unsaved(mapping, observed)


def find_warnings(observed: Observed) -> Iterator[Finding]:
    """Find memory whose seal or way of locking a restore loses, the first map of each process."""
    for kind in ("sealed", "on-fault"):
        first = {mapping.pid: mapping for mapping in reversed(observed.unsavable_maps) if mapping.kind == kind}
        for pid, mapping in sorted(first.items()):
            yield cause(kind).finding(pid=pid, start=f"{mapping.start:x}")


def find_rings(observed: Observed) -> Iterator[Finding]:
    """Find rings of packet sockets: the kernel begins a new one at its start, and the program waits where it was."""
    for pid in sorted({mapping.pid for mapping in observed.unsavable_maps if mapping.kind == "ring"}):
        yield cause("packet-ring").finding(pid=pid)


def _find_unsaved(mapping: UnsavableMap, observed: Observed) -> Iterator[Finding]:
    """Find what CRIU refuses. Source: criu/proc_parse.c, handle_vma and vma_get_mapfile."""
    if mapping.kind == "device":
        yield cause("device-map").finding(pid=mapping.pid, address=f"{mapping.start:x}")
    elif mapping.kind == "uprobes":
        yield cause("uprobes").finding(pid=mapping.pid)
    elif mapping.kind == "sysv":
        # CRIU saves it with the whole IPC namespace, which must be the tree's own (criu/cr-dump.c:477).
        if shares_namespace(observed, "ipc"):
            yield cause("sysv-shm").finding()
    elif mapping.kind == "sysv-part":
        if not shares_namespace(observed, "ipc"):
            yield cause("sysv-shm-part").finding(id=mapping.path)
    elif mapping.kind == "unknown":
        key = _UNKNOWN.get(mapping.path.removesuffix(" (deleted)"))
        yield cause(key).finding() if key else cause("unknown-mapping").finding(path=mapping.path)
