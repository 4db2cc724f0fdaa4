"""Check the memory maps of a tree before a dump."""

from __future__ import annotations

from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.tree import Observed
from crckpt.preflight.dump.namespaces import shares_namespace

# Keys of causes by the path of the map.
_UNKNOWN = {"/secretmem": "secretmem", "anon_inode:[io_uring]": "io-uring"}


def judge_memory(observed: Observed) -> Iterator[Finding]:
    """Find maps that CRIU cannot save (criu/proc_parse.c, handle_vma and vma_get_mapfile), and what a restore loses."""
    for mapping in observed.unsavable_maps:
        if mapping.kind == "device":
            yield cause("device-map").finding(pid=mapping.pid, address=f"{mapping.start:x}")
        elif mapping.kind == "uprobes":
            yield cause("uprobes").finding(pid=mapping.pid)
        # CRIU saves it with the whole IPC namespace, which must be the tree's own (criu/cr-dump.c:477).
        elif mapping.kind == "sysv" and shares_namespace(observed, "ipc"):
            yield cause("sysv-shm").finding()
        elif mapping.kind == "sysv-part" and not shares_namespace(observed, "ipc"):
            yield cause("sysv-shm-part").finding(id=mapping.path)
        elif mapping.kind == "unknown":
            key = _UNKNOWN.get(mapping.path.removesuffix(" (deleted)"))
            yield cause(key).finding() if key else cause("unknown-mapping").finding(path=mapping.path)
    # A restore loses the seal or the way of locking; the kernel begins a new ring of a packet socket at its start, and
    # the program waits where it was.
    for kind, key in (("sealed", "sealed"), ("on-fault", "on-fault"), ("ring", "packet-ring")):
        first = {mapping.pid: mapping for mapping in reversed(observed.unsavable_maps) if mapping.kind == kind}
        for pid, mapping in sorted(first.items()):
            start = {"start": f"{mapping.start:x}"} if kind != "ring" else {}
            yield cause(key).finding(pid=pid, **start)
