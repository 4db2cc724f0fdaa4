"""What a tree needs of the host on which it is restored, and does not find. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

NEEDS = (
    Cause(
        "no-address-family",
        "this kernel has no {name} sockets, and the tree has some",
        "boot without ipv6.disable=1, or load the module: modprobe -a ipv6 af_packet",
    ),
    Cause(
        "no-tcp-repair",
        "TCP connections cannot be set up here as they were",
        "restore with CAP_NET_ADMIN on a kernel of a distribution, or drop them: --tcp close",
    ),
    Cause(
        "older-criu",
        "CRIU {recorded} made this checkpoint, and this one, {version}, may leave out what it does not know of it",
        "get a newer CRIU: scripts/install-criu",
    ),
    Cause("no-tun", "/dev/net/tun cannot be opened, and the tree has a tun or tap device", "modprobe tun"),
    Cause(
        "no-guard-pages",
        "this kernel cannot guard pages of memory, as the tree's programs had it done",
        "use a kernel from 6.13 on",
    ),
    Cause(
        "clocks-jump",
        "this kernel has no time namespaces: the tree's monotonic clocks jump if this host was booted again",
        "use a kernel with CONFIG_TIME_NS",
    ),
    Cause(
        "tasks-limit",
        "the tree has {needed} processes and threads, and control group {group} lets in {left} more",
        "raise its pids.max, or restore from another group",
    ),
    Cause(
        "tree-memory",
        "the tree takes {needed} of memory, and {free} are free",
        "end something else, or raise the memory limit of the control group",
    ),
    Cause(
        "huge-pages",
        "the tree takes {needed} of the huge pages ({size} each) that were set aside, and {free} are free",
        "set more aside, by a larger number in {directory}/nr_hugepages",
    ),
    Cause(
        "restore-space",
        "a restore writes {needed} to the file system of {directory}, and it has {free} free",
        "free space there",
    ),
    Cause(
        "address-missing",
        "{protocol} address {address} is not one of this host's, and the tree is bound to it",
        "ip addr add {host} dev INTERFACE",
    ),
    Cause(
        "file-upgraded",
        "{path} is not what it was at the checkpoint: package {package} became {version} at {since} ({use})",
        "install {package} {before|as it was at the checkpoint} again",
    ),
)
