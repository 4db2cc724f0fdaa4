"""What stands against a rehearsal, and what it needs. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.images.mm import FILE_SHARED, PROT_WRITE
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore import FileNow, Verdict, required_path

_NOT_TWICE: Final = ("mnt", "pid", "user")


def unrehearsable(tree: ImageTree, *, needs_terminal: bool) -> Iterator[Finding]:
    """What throwaway namespaces cannot give."""
    for kind in _NOT_TWICE:
        if tree.is_apart(kind):
            yield cause("namespace-rehearsed").told(kind=kind)
    for socket in tree.inet_sockets:
        if socket.interface not in ("", "lo"):
            yield cause("interface-rehearsed").told(socket=socket.title, interface=socket.interface)
    if needs_terminal:
        yield cause("terminal-rehearsed").told()


def addresses(tree: ImageTree) -> tuple[str, ...]:
    """What its sockets are bound or connected to, and is not on every loopback interface anyway."""
    used = {end.host for socket in tree.inet_sockets for end in (socket.source, socket.destination)}
    found = {_plain(ip_address(host.partition("%")[0])) for host in used if host}
    wanted = (one for one in found if not (one.is_unspecified or one.is_loopback or one.is_multicast))
    return tuple(sorted(str(one) for one in wanted if str(one) != _BROADCAST))


def copied_bytes(tree: ImageTree, files: dict[str, FileNow | None]) -> int:
    """What the files hold that it can write to: an overlay copies each when it is opened."""
    shared = {
        vma.file_id
        for process in tree.processes
        if process.memory is not None
        for vma in process.memory.vmas
        if vma.status & FILE_SHARED and vma.prot & PROT_WRITE
    }
    written = {
        required_path(file)
        for file in tree.regular_files
        if file.flags & os.O_ACCMODE != os.O_RDONLY or file.id in shared
    }
    return sum(found.size for path, found in files.items() if path in written and found is not None)


def cuts_told(verdict: Verdict) -> tuple[Finding, ...]:
    """The warnings of a verdict in which files are cut back, for a place where that harms nobody."""
    told = (cause("file-cut-rehearsed").told(path=rewind.path, size=rewind.size) for rewind in verdict.rewinds)
    return (*(finding for finding in verdict.warnings if finding.key != "file-rewound"), *told)


_BROADCAST: Final = "255.255.255.255"


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that an IPv6 socket uses is one of IPv4."""
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
