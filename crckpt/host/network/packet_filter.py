"""The packet filter: the network locks that CRIU keeps there, and rules that judge by control group (version 2).

Source: nft(8), `socket cgroupv2`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host.opened import opened
from crckpt.host.process import run
from crckpt.host.process.cgroups import group_directory, restrictions
from crckpt.host.syscalls import netlink
from crckpt.images.sockets import InetSocket
from crckpt.model import RunId

# A private prefix of CRIU brings its nft along.
_NFT_BESIDE = Path("/usr/local/lib/crckpt/criu/nft")

_NAMED = Path("/run/netns")

# Digits of a truncated id: a shorter name could be the lock of another run.
_LOCK_NAME = len("CRIU-") + 16
# CRIU truncates it to its buffer: 21 digits of the id in 4.2 (criu/netfilter.c:161).
_MOST_OF_NAME: Final = len("CRIU-") + 21
CRIU_MARK: Final = 0xC114
"""The mark of CRIU's own packets. Only who has CAP_NET_ADMIN or CAP_NET_RAW can give one (socket(7), SO_MARK)."""

_MOUNTS: Final = Path("/sys/fs/cgroup")
_NETFILTER: Final = 12  # NETLINK_NETFILTER
# linux/netfilter/nfnetlink.h: nftables, NFT_MSG_GETTABLE; struct nfgenmsg: family, version, resource, none of them.
_GET_TABLES, _OF_ANY_KIND = 10 << 8 | 1, bytes(4)
_WITHIN_S: Final = 5.0
_QUOTED: Final = re.compile(r'"([^"\n]+)"')


def find_nft() -> Path | None:
    """The packet filter's tool: the system's, or the one that came with CRIU."""
    return run.find_program("nft") or (_NFT_BESIDE if _NFT_BESIDE.exists() else None)


def can_filter() -> bool:
    """Return whether the kernel lets us look at its packet filter."""
    tool = find_nft()
    return tool is not None and run.run([tool, "list", "tables"]).ok


def lift_lock(run_id: RunId, inside: Path | None = None) -> str | None:
    """Remove the network lock of a run of CRIU; return its table's name, None if there is none. Raises HostCannot.

    `inside` is the path of the network namespace that has it (default: ours).
    """
    argv = find_removal(run_id, inside)
    if argv is None:
        return None
    done = run.run(argv)
    if not done.ok:
        raise HostCannot(f"cannot remove the network lock: {done.output.strip()}", hint=run.quote(argv))
    return argv[-1]


def find_removal(run_id: RunId, inside: Path | None = None) -> tuple[str, ...] | None:
    """Find the command that removes the network lock of a run of CRIU, with the table last; None if there is none."""
    found = (name for name in find_locks(inside) if len(name) >= _LOCK_NAME and f"CRIU-{run_id}".startswith(name))
    table = next(found, None)
    return None if table is None else (*_entering(inside), str(find_nft()), "delete", "table", "inet", table)


@contextmanager
def connections_locked(run_id: RunId, connections: Sequence[InetSocket]) -> Iterator[None]:
    """Drop the packets of these connections, but CRIU's, until its restore is complete, or the block ends.

    CRIU lets a connection send what waits in it before the other end exists, and this host would answer with a reset.
    The lock of the dump prevents that, but it is gone after a restore, after a reboot, and on another host. Ours has
    its name: CRIU removes it when all connections exist. Raises HostCannot.
    """
    tool = find_nft()
    if not connections or tool is None or find_removal(run_id) is not None:
        yield
        return
    chain = f"inet {f'CRIU-{run_id}'[:_MOST_OF_NAME]}"
    words = [f"add table {chain};", f"add chain {chain} input {{ type filter hook input priority 0; }};"]
    words.append(f"add rule {chain} input meta mark {CRIU_MARK} accept;")
    for each in connections:
        own, peer = each.source, each.destination
        ip = "ip" if isinstance(own.ip, IPv4Address) else "ip6"
        ends = f"{ip} saddr {own.ip} tcp sport {own.port} {ip} daddr {peer.ip} tcp dport {peer.port}"
        words.append(f"add rule {chain} input {ends} drop;")
    done = run.run([tool, *words])
    if not done.ok:
        raise HostCannot(f"connections within the tree cannot be locked ({tool}): {done.output.strip()}")
    try:
        yield
    finally:
        lift_lock(run_id)


@contextmanager
def lock_removed(run_id: RunId, removal: tuple[str, ...]) -> Iterator[None]:
    """Remove the network lock of a run of CRIU by this command while the block runs. Raises HostCannot.

    It goes on if crckpt is killed.
    """
    child = run.start(removal, output=Path(os.devnull))
    try:
        yield
    finally:
        status = child.wait()
    if status != 0:
        lift_lock(run_id)


@contextmanager
def find_network(inode: int, pids: Iterable[int]) -> Iterator[Path | None]:
    """A path to the network namespace of that inode, of one of these processes or a named one; None if it is gone."""
    ours = Path("/proc/self/ns/net").stat().st_dev
    for path in (*(Path(f"/proc/{pid}/ns/net") for pid in pids), *find_named_networks()):
        # It stays open during the block, so that the path cannot lead to another one.
        with suppress(OSError), opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == (ours, inode):
                yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
                return
    yield None


def find_named_networks() -> tuple[Path, ...]:
    """The paths of named network namespaces. Source: ip-netns(8)."""
    return tuple(sorted(_NAMED.iterdir())) if _NAMED.is_dir() else ()


def _entering(inside: Path | None) -> tuple[str, ...]:
    return ("nsenter", f"--net={inside}") if inside is not None else ()


def find_locks(inside: Path | None = None) -> tuple[str, ...]:
    """Find the names of all tables with which CRIU locks connections."""
    tool = find_nft()
    listed = run.run([*_entering(inside), tool, "list", "tables", "inet"]).output.splitlines() if tool else []
    return tuple(line.removeprefix("table inet ") for line in listed if line.startswith("table inet CRIU-"))


class PacketRules(Struct, frozen=True):
    """Names in rules that have to do with groups; some are of other things, and no paths of groups."""

    names: frozenset[str] = frozenset()

    def find_restrictions(self, controllers: str, path: str) -> dict[str, int]:
        """Find what a group and those above it restrict: as `restrictions` says, and these rules of packets.

        Such a rule is `packets of GROUP`, and counts as 1.
        """
        found = restrictions(controllers, path)
        own = None if controllers else group_directory(controllers, path)
        if own is not None:
            # nft names a group below /sys/fs/cgroup, newer ones below the mount of version 2.
            parts = [part for part in path.split("/") if part]
            names = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
            below = str(own).removesuffix("/".join(parts)).removeprefix(f"{_MOUNTS}/")
            found.update((f"packets of {name}", 1) for name in names if {name, below + name} & self.names)
        return found


def read_packet_rules() -> PacketRules:
    """Read the rules of our network namespace as they are now. Before the tree is frozen: to start nft takes 10 ms."""
    listed = ""
    with suppress(OSError, HostCannot):
        tables = netlink.ask(_NETFILTER, _GET_TABLES, netlink.LIST, _OF_ANY_KIND)
        # Without any table there is no rule.
        if next(tables, None) is not None and (tool := find_nft()):
            listed = run.run([tool, "list", "ruleset"], timeout=_WITHIN_S).output
    return PacketRules(frozenset(_QUOTED.findall(listed) if "cgroupv2" in listed else ()))
