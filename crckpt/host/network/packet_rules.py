"""Find rules of the packet filter that judge by control group (version 2): nft(8), `socket cgroupv2`."""

from __future__ import annotations

import re
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host.namespaces.network_locks import find_nft
from crckpt.host.process import run
from crckpt.host.process.cgroups import group_directory, restrictions

_MOUNTS: Final = Path("/sys/fs/cgroup")
_NETFILTER: Final = 12  # NETLINK_NETFILTER
# linux/netlink.h, linux/netfilter/nfnetlink.h: length, type (10: nftables, 1: NFT_MSG_GETTABLE, 0 in the answer), flags
# (all of them), sequence number, port; family, version, resource.
_TABLES: Final = struct.pack("=IHHIIBBH", 20, 10 << 8 | 1, 0x301, 0, 0, 0, 0, 0)
_TABLE: Final = 10 << 8
_WITHIN_S: Final = 5.0
_QUOTED: Final = re.compile(r'"([^"\n]+)"')


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
    with (
        suppress(OSError, HostCannot),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER) as asked,
    ):
        asked.sendto(_TABLES, (0, 0))
        _, kind = struct.unpack_from("=IH", asked.recv(1 << 16))
        # Without any table there is no rule.
        if kind == _TABLE and (tool := find_nft()):
            listed = run.run([tool, "list", "ruleset"], timeout=_WITHIN_S).output
    return PacketRules(frozenset(_QUOTED.findall(listed) if "cgroupv2" in listed else ()))
