"""What CRIU was at when it failed, by name: CRIU has numbers where a socket has addresses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from crckpt.criu.explain import Explanation, Place
from crckpt.host import proc
from crckpt.host.observe import sockets as observed_sockets
from crckpt.host.observe import unix_sockets
from crckpt.host.observe.tree import Observed
from crckpt.images.regfile import RegularFile
from crckpt.images.tree import ImageTree


def in_live_tree(seen: Observed, *, inside: bool) -> Callable[[Explanation], Place | None]:
    """By the tree that was to be dumped, as it is now. `inside`: CRIU was in its pid namespace, and has those PIDs."""

    def resolved(told: Explanation) -> Place | None:
        numbers = {process.ns_pids[-1] if inside else process.pid: process for process in seen.tree.processes}
        if told.place is None:
            return _this_end(seen, told.outside_end) if told.outside_end else None
        process = numbers.get(told.place.pid)
        if process is None or told.place.fd is None or told.place.path:
            return told.place
        return replace(told.place, path=_live_title(seen, process, told.place.fd))

    return resolved


def in_images(tree: ImageTree) -> Callable[[Explanation], Place | None]:
    """By the images of the tree that was to be restored."""

    def resolved(told: Explanation) -> Place | None:
        process = next((found for found in tree.processes if told.place and found.pid == told.place.pid), None)
        if told.place is None or process is None:
            return told.place
        place = replace(told.place, comm=process.comm)
        file = next((found.file for found in process.descriptors if found.fd == place.fd), None)
        if file is None or place.path:
            return place
        return replace(place, path=file.path if isinstance(file, RegularFile) else file.title)

    return resolved


def _live_title(seen: Observed, process: proc.Process, fd: int) -> str:
    """Empty where the descriptor may have become another one since CRIU was at it."""
    now = proc.read_process(process.pid)
    found = next((found for found in proc.descriptors(process.pid) if found.fd == fd), None)
    if now is None or now.start != process.start or found is None:
        return ""
    before = {(known.pid, known.fd): known.target for known in seen.descriptors}
    if before.get((process.pid, fd), found.target) != found.target:
        return ""
    return observed_sockets.socket_titles(process.pid).get(found.socket_inode, found.target)


def _this_end(seen: Observed, outside: int) -> Place | None:
    """The descriptor of the tree that is connected to that unix socket."""
    with suppress(OSError):  # the kernel tells nothing of sockets
        known = unix_sockets.unix_sockets()
        for process in seen.tree.processes:
            for found in proc.descriptors(process.pid):
                end = known.get(found.socket_inode)
                if end is not None and end.peer == outside:
                    return Place(process.pid, process.comm, found.fd, f"{end.title} -> {_title_of(known, outside)}")
    return None


def _title_of(known: dict[int, unix_sockets.UnixSocket], inode: int) -> str:
    return known[inode].title if inode in known else f"#{inode}"
