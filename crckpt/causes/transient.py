"""Errors after which CRIU may continue: reported only if no line has another cause. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

PASSING = (
    Cause(
        "no-lazy-pages",
        "this kernel cannot load memory after a restore (userfaultfd)",
        "restore without --lazy-pages",
        "Lazy pages are not available|Incompatible uffd API|Failed to get uffd API",
        "criu/kerndat.c",
    ),
    Cause(
        "cuda-plugin",
        "CRIU's CUDA plugin cannot suspend or resume the program's GPU: {why}",
        "install cuda-checkpoint and driver 570 or newer; check that this host has the GPU: nvidia-smi",
        "cuda_plugin: (?P<why>[^:].*)",
        "plugins/cuda/cuda_plugin.c",
    ),
    Cause(
        "amdgpu-plugin",
        "CRIU's plugin for AMD GPUs cannot save or restore the program's GPU: {why}",
        "check that the plugin fits the driver, and that the devices exist: ls /dev/kfd /dev/dri",
        "amdgpu_plugin: (?P<why>[^:].*)",
        "plugins/amdgpu/amdgpu_plugin.c",
    ),
    Cause(
        "plugin-device",
        "no CRIU plugin handles a device that the program maps",
        "use a CRIU plugin for this device: criu --libdir DIRECTORY",
        "handle_device_vma plugin failed",
        "criu/proc_parse.c",
    ),
    Cause(
        "iptables-missing",
        "CRIU needs iptables to block packets, but this host does not have it",
        "install iptables, or with criu: --network-lock nftables",
        r'execvp\("ip6?tables(?:-legacy)?-restore"',
        "criu/util.c",
    ),
    Cause(
        "long-line",
        "a line of /proc (mountinfo, status, cgroup) is longer than CRIU can read (one page)",
        "shorten it: fewer layers of overlayfs, shorter paths, fewer groups; a newer CRIU may read it:"
        " crckpt install-criu",
        # BUFSIZE is one page (criu/bfd.c:26).
        "The bfd buffer is too small",
        "criu/bfd.c",
    ),
    Cause(
        "parasite-talk",
        "CRIU and its code in the program cannot pass descriptors to each other: a security module (SELinux,"
        " AppArmor) forbids it, or a limit on open files",
        "find the denial: ausearch -m avc -ts recent, or journalctl -k -g DENIED (of a log-file in /etc/criu: leave it"
        " out); raise the limit: ulimit -n 1048576",
        r"Message reply from daemon is trimmed|recvmsg got unexpected length|this is not the ack we expected"
        r"|Trimmed message received \(\d+/-\d",
        "compel/src/lib/infect-rpc.c",
        sure=False,
    ),
    Cause(
        "netlink-privileges",
        "CRIU is not allowed to change the network (CAP_NET_ADMIN)",
        "restore as root of the host; in a container: --cap-add NET_ADMIN, or --privileged",
        # -1: EPERM. CRIU writes the number that the kernel answers (criu/libnetlink.c:54).
        r"(?<![-\d])-1 reported by netlink",
        "criu/libnetlink.c",
    ),
    Cause(
        "netlink",
        "the kernel refuses a change to the network of the tree (error {code})",
        "load its modules: modprobe -a veth tun macvlan",
        r"(?:ERROR )?(?P<code>-(?!1 )\d+) reported by netlink",
        "criu/libnetlink.c",
        sure=False,
    ),
)

EARLIER = (
    (
        {"not-run-inside", "code-refused", "not-permitted"},
        Cause(
            "executable-memory",
            "a security module (SELinux: execmem) forbids CRIU to put its code into process {pid}",
            "find the denial: ausearch -m avc -ts recent; allow it: setsebool -P deny_execmem off, or give the program"
            " another context",
            r"mmap\(PROT_WRITE \| PROT_EXEC\) failed for (?P<pid>\d+)",
            "compel/arch/x86/src/lib/infect.c",
        ),
    ),
    (
        {"device", "device-map", "unknown-mapping", "plugin-device"},
        Cause(
            "cuda-plugin-off",
            "the program seems to use a GPU, but CRIU's CUDA plugin has switched itself off: {why}",
            "install cuda-checkpoint in a directory of CRIU's PATH, and driver 570 or newer: nvidia-smi",
            r"cuda_plugin: (?P<why>check that \S{1,100} is present in \$PATH"
            r"|cuda-checkpoint --action flag not supported[^.\n]{0,80})",
            "plugins/cuda/cuda_plugin.c",
            sure=False,
        ),
    ),
)
"""The cause to report instead of one of these keys if an earlier warning names it."""

SILENT = (
    Cause(
        "no-socket-diag",
        "this kernel does not list sockets of family {family} for CRIU",
        "modprobe -a unix_diag tcp_diag udp_diag raw_diag af_packet_diag netlink_diag, or boot a kernel that has them",
        # -2: ENOENT, without the module. CRIU writes it for -v4 only (criu/sockets.c:828), and does without RAW.
        r"Sockets collect procedure family (?P<family>\S{1,40}) proto (?!IPPROTO_UDPLITE|IPPROTO_RAW)\S{1,40}: -2",
        "criu/sockets.c",
        sure=False,
    ),
    Cause(
        "bug-udp-lite",
        "CRIU cannot list the sockets of this kernel: before 4.2.1 it asks for UDP-Lite, which Linux 7.1 and later do "
        "not have",
        "install CRIU 4.2.1 or newer: crckpt install-criu",
        # -2: ENOENT, for -v4 only. At lower levels the list is the last that CRIU logs before it fails.
        r"Sockets collect procedure family \S{1,40} proto IPPROTO_UDPLITE: -2"
        r"|Collect(?:ing netns \d{1,10}/\d{1,10}| netlink sock \w{1,12})\n(?:\([\d.]{1,20}\) )?(?:net: )?Unlock",
        "criu/sockets.c",
        sure=False,
        fixed=(4, 2, 1),
    ),
    Cause(
        "tcp-unsaid",
        "CRIU cannot save a TCP connection of the program, and does not say why; usually the connection was just "
        "being closed",
        "try again in a moment, or drop the connections: --tcp close; or use a newer CRIU: crckpt install-criu",
        # Where a connection is just being closed, CRIU 3 fails right after this line, without a message.
        r"Turning repair on for socket [0-9a-f]{1,16}\n(?:\([\d.]{1,20}\) )?(?:-{20}|Error \()",
        "criu/sk-tcp.c",
        sure=False,
        by_criu="try again in a moment, or drop the connections: --tcp-close; or use a newer CRIU: crckpt install-criu",
    ),
)
"""Messages that are no errors: examined only if CRIU failed without an error message."""
