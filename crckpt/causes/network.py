"""Network namespaces, devices and rules. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

NETWORK = (
    Cause(
        "tun",
        "the tree has a tun or tap device in the host's network",
        "start it in its own network namespace: ip netns exec NAME PROGRAM",
        "Net namespace is required to dump tun link",
        "criu/tun.c",
    ),
    Cause(
        "tun-unheld",
        "no process of the tree holds tun device {name}",
        "make it persistent: ip tuntap, or checkpoint its holder too",
        "No fd infor? for non persistent tun device (?P<name>.+)",
        "criu/tun.c",
    ),
    Cause(
        "tun-filter",
        "tun device {name} has a packet filter, which CRIU cannot save",
        "remove the filter in the program",
        r"Can't dump (?P<name>\S+) with filter on-board",
        "criu/tun.c",
    ),
    Cause(
        "tun-again",
        "a tun or tap device cannot be restored",
        "restore as root (CAP_NET_ADMIN), with the module: modprobe tun",
        r"Can't (?:open|create) tun device|Can't attach tunfile to device|Error restoring \S+ link params",
        "criu/tun.c",
    ),
    Cause(
        "link-kind",
        "the network namespace of the tree has a device of kind {kind}, which CRIU cannot save",
        "remove it before the dump: ip link delete NAME",
        r"Unsupported link \d+ \(type \d+ kind (?P<kind>\S+)\)",
        "criu/net.c",
    ),
    Cause(
        "link-bridge",
        "the network namespace of the tree has a bridge with ports, which CRIU cannot save",
        "remove the ports from it before the dump: ip link set PORT nomaster",
        "dumping bridges with attached slaves",
        "criu/net.c",
    ),
    Cause(
        "link-type",
        "the network namespace of the tree has a device of type {type}, which CRIU cannot save",
        "remove it before the dump: ip link delete NAME",
        r"Unsupported link type (?P<type>\d+)",
        "criu/net.c",
    ),
    Cause(
        "veth-outside",
        "the other end of a veth is outside the tree",
        "pass it, with criu: --external veth[INSIDE]:OUTSIDE",
        "Unknown peer net namespace",
        "criu/net.c",
    ),
    Cause(
        "link-again",
        "a network device of the tree cannot be restored",
        "restore as root (CAP_NET_ADMIN), with the modules that the device needs: modprobe -a veth bridge macvlan sit",
        "Can't restore link(?:: |$)|can not restore link|Unable to restore network links"
        "|couldn't restore macvlan interface|a macvlan parent for",
        "criu/net.c",
    ),
    Cause(
        "ip-tool",
        "the program ip failed: {what}",
        "install it (Debian: apt install iproute2), or run the command by hand",
        "IP tool failed on (?P<what>.+)",
        "criu/net.c",
    ),
    Cause(
        "iptables-legacy",
        "the images contain rules of iptables, but this host has only iptables over nftables",
        "install the legacy iptables (iptables-legacy-restore)",
        "Can't restore ip6?tables dump - no legacy version present",
        "criu/net.c",
    ),
    Cause(
        "nft-rules",
        "nftables refuses the rules of the tree",
        "read its message: crckpt explain -v; then load the modules: modprobe nf_tables",
        "nft command error:|Could not process rule: (?!File exists|No such file)|Failed to create nft context object",
        "criu/net.c",
    ),
    Cause(
        "netns-outside",
        "the images need an external network namespace, {key}, which was not passed",
        "with criu: --inherit-fd fd[NUMBER]:{key}",
        "Unable to find an external netns: (?P<key>.+)",
        "criu/net.c",
    ),
    Cause(
        "no-loopback",
        "the loopback device is down, and CRIU needs it to probe the kernel",
        "ip link set lo up",
        r"kerndat\.c:\d+\): Unable to (?:bind|connect|listen)",
        "criu/kerndat.c",
    ),
    Cause(
        "sysfs-mount",
        "the kernel does not let CRIU mount sysfs in the network namespace of the tree: {why}",
        "boot a newer kernel (Ubuntu's 4.4.0 before 4.4.0-21 has a bug there); run crckpt as root of the host",
        r"\bnet\.c:\d{1,6}\): (?:net: )?mount failed: (?P<why>.+)",
        "criu/net.c",
        sure=False,
    ),
    Cause(
        "new-namespace",
        "a new namespace cannot be made",
        "restore as root with CAP_SYS_ADMIN, and check the limits: sysctl -a --pattern user.max_.*_namespaces",
        "Unable to create a new (?:netns|mntns|time namespace|mount namespace)|Can't unshare net-namespace"
        "|Can't create new mount namespace|Unable to (?:unshare|clone|create) (?:a )?mount namespace"
        "|couldn't unshare cgns",
        "criu/namespaces.c",
    ),
)
