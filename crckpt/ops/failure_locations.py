"""Name the process and descriptor at which CRIU failed; for a socket, with its addresses."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from crckpt.criu.explain import Explanation, FailureLocation
from crckpt.host import proc
from crckpt.host.observe import sock_diag
from crckpt.host.observe import sockets as observed_sockets
from crckpt.host.observe.tree import Observed
from crckpt.images.regfile import RegularFile
from crckpt.images.tree import ImageTree


def name_place_in_tree(observed: Observed, explanation: Explanation, *, inside: bool) -> FailureLocation | None:
    """Name the place by the tree that was to be dumped, as it is now. `inside`: CRIU knows PIDs of its namespace."""
    numbers = {process.ns_pids[-1] if inside else process.pid: process for process in observed.tree.processes}
    if explanation.place is None:
        return _find_own_end(observed, explanation.outside_end) if explanation.outside_end else None
    process = numbers.get(explanation.place.pid)
    if process is None or explanation.place.fd is None or explanation.place.path:
        return explanation.place
    return replace(explanation.place, path=_live_title(observed, process, explanation.place.fd))


def name_place_in_images(tree: ImageTree, explanation: Explanation) -> FailureLocation | None:
    """Name the place by the images of the tree that was to be restored."""
    place = explanation.place
    process = next((found for found in tree.processes if place and found.pid == place.pid), None)
    if place is None or process is None:
        return place
    place = replace(place, comm=process.comm)
    file = next((found.file for found in process.descriptors if found.fd == place.fd), None)
    if file is None or place.path:
        return place
    return replace(place, path=file.path if isinstance(file, RegularFile) else file.title)


def _live_title(observed: Observed, process: proc.Process, fd: int) -> str:
    """Return what the descriptor is; empty if it may have become another one since CRIU failed at it."""
    now = proc.read_process(process.pid)
    found = next((found for found in proc.descriptors(process.pid) if found.fd == fd), None)
    if now is None or now.identity != process.identity or found is None:
        return ""
    # CRIU has let the tree go, and it runs: the number may belong to another file.
    before = {(known.pid, known.fd): known.target for known in observed.descriptors}
    if before.get((process.pid, fd), found.target) != found.target:
        return ""
    return observed_sockets.socket_titles(process.pid).get(found.socket_inode, found.target)


def _find_own_end(observed: Observed, outside: int) -> FailureLocation | None:
    """The tree's descriptor that is connected to this unix socket outside of the tree."""
    with suppress(OSError):  # this kernel cannot list sockets
        known = sock_diag.read_unix_sockets()
        for process in observed.tree.processes:
            for found in proc.descriptors(process.pid):
                end = known.get(found.socket_inode)
                if end is not None and end.peer == outside:
                    other = known[outside].title if outside in known else f"#{outside}"
                    return FailureLocation(process.pid, process.comm, found.fd, f"{end.title} -> {other}")
    return None
