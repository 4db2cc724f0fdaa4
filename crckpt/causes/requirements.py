"""Needs of a tree that the host of the restore does not meet. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

NEEDS = (
    Cause(
        "job-runs",
        "{job} runs already, {place}: a restore would start a second copy",
        "to go back to this checkpoint, end it first: crckpt dump {job} --stop",
    ),
    Cause(
        "no-address-family",
        "this kernel has no {name} sockets, but the tree has some",
        "boot without ipv6.disable=1, or load the module: modprobe -a ipv6 af_packet",
    ),
    Cause(
        "no-tcp-repair",
        "this host cannot restore TCP connections",
        "restore with CAP_NET_ADMIN on a distribution's kernel, or drop them: --tcp close",
    ),
    Cause(
        "older-criu",
        "CRIU {recorded} made this checkpoint, and this older one, {version}, may lose parts that it does not know",
        "install a newer CRIU: crckpt install-criu",
    ),
    Cause("no-tun", "/dev/net/tun cannot be opened, but the tree has a tun or tap device", "modprobe tun"),
    Cause(
        "no-guard-pages",
        "this kernel has no guard pages (MADV_GUARD_INSTALL), but the tree uses them",
        "use Linux 6.13 or newer",
    ),
    Cause(
        "clocks-jump",
        "this kernel has no time namespaces: the tree's monotonic clocks jump if this host was rebooted",
        "use a kernel with CONFIG_TIME_NS",
    ),
    Cause(
        "tasks-limit",
        "the tree has {needed} processes and threads, but control group {group} allows only {left} more",
        "raise its pids.max, or restore from another group",
    ),
    Cause(
        "tree-memory",
        "the tree needs {needed} of memory, but only {free} are free",
        "end another program, or raise the memory limit of the control group",
    ),
    Cause(
        "huge-pages",
        "the tree needs {needed} reserved huge pages ({size} each), but only {free} are free",
        "reserve more: {directory}/nr_hugepages",
    ),
    Cause(
        "restore-space",
        "a restore writes {needed} to the file system of {directory}, which has only {free} free",
        "free space there",
    ),
    Cause(
        "address-missing",
        "this host does not have the {protocol} address {address}, which the tree uses",
        "ip addr add {host} dev INTERFACE",
    ),
    Cause(
        "file-upgraded",
        "{path} changed since the checkpoint: package {package} became {version} at {since} ({use})",
        "install {package} {before|as it was at the checkpoint} again",
    ),
)
