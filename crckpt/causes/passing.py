"""What CRIU complains of and may go on all the same: said only where no line has another cause. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

PASSING = (
    Cause(
        "no-lazy-pages",
        "this kernel cannot fill in memory after a restore (userfaultfd)",
        "restore without --lazy-pages",
        "Lazy pages are not available|Incompatible uffd API|Failed to get uffd API",
        "criu/kerndat.c",
    ),
    Cause(
        "cuda-plugin",
        "CRIU's CUDA plugin cannot suspend or resume the program's GPU: {why}",
        "install cuda-checkpoint and a driver from 570 on, and see that the GPU is seen here: nvidia-smi",
        "cuda_plugin: (?P<why>[^:].*)",
        "plugins/cuda/cuda_plugin.c",
    ),
    Cause(
        "amdgpu-plugin",
        "CRIU's plugin for AMD GPUs cannot save or restore the program's GPU: {why}",
        "see that the plugin fits the driver, and that /dev/kfd and /dev/dri are seen here",
        "amdgpu_plugin: (?P<why>[^:].*)",
        "plugins/amdgpu/amdgpu_plugin.c",
    ),
    Cause(
        "plugin-device",
        "no CRIU plugin took on a mapping of a device",
        "take a CRIU with the plugin for it: criu --libdir DIRECTORY",
        "handle_device_vma plugin failed",
        "criu/proc_parse.c",
    ),
    Cause(
        "iptables-missing",
        "CRIU holds back packets with iptables, and this host does not have it",
        "install iptables, or with criu: --network-lock nftables",
        r'execvp\("ip6?tables(?:-legacy)?-restore"',
        "criu/util.c",
    ),
    Cause(
        "netlink",
        "the kernel refuses a change of the network of the tree (error {code})",
        "see that its modules are loaded: modprobe -a veth tun macvlan",
        r"(?:ERROR )?(?P<code>-\d+) reported by netlink",
        "criu/libnetlink.c",
        sure=False,
    ),
)

SILENT = (
    Cause(
        "no-socket-diag",
        "this kernel does not list its sockets of family {family} to CRIU",
        "modprobe -a unix_diag tcp_diag udp_diag raw_diag af_packet_diag netlink_diag, or boot a kernel that has them",
        r"Sockets collect procedure family (?P<family>\S{1,40}) proto (?!IPPROTO_UDPLITE|IPPROTO_RAW)\S{1,40}: -2",
        "criu/sockets.c",
        sure=False,
    ),
)
"""What CRIU says without complaint: looked for where it has failed and complained of nothing."""
