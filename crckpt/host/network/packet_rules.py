"""Find rules of the packet filter that judge by control group (version 2): nft(8), `socket cgroupv2`."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host.namespaces.network_locks import find_nft
from crckpt.host.process import run
from crckpt.host.process.cgroups import group_directory, restrictions
from crckpt.host.syscalls import netlink

_MOUNTS: Final = Path("/sys/fs/cgroup")
_NETFILTER: Final = 12  # NETLINK_NETFILTER
# linux/netfilter/nfnetlink.h: nftables, NFT_MSG_GETTABLE; struct nfgenmsg: family, version, resource, none of them.
_GET_TABLES, _OF_ANY_KIND = 10 << 8 | 1, bytes(4)
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
    with suppress(OSError, HostCannot):
        tables = netlink.ask(_NETFILTER, _GET_TABLES, netlink.LIST, _OF_ANY_KIND)
        # Without any table there is no rule.
        if next(tables, None) is not None and (tool := find_nft()):
            listed = run.run([tool, "list", "ruleset"], timeout=_WITHIN_S).output
    return PacketRules(frozenset(_QUOTED.findall(listed) if "cgroupv2" in listed else ()))
