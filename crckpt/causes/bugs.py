"""Bugs of CRIU: the message, and the release that fixes it. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause


def _bug(key: str, what: str, fixed: tuple[int, ...], pattern: str, source: str) -> Cause:
    release = ".".join(map(str, fixed))
    return Cause(
        key,
        f"CRIU has a bug here, which CRIU {release} fixes: {what}",
        f"install CRIU {release} or newer: crckpt install-criu",
        pattern,
        source,
        fixed=fixed,
    )


BUGS = (
    _bug(
        "bug-mount-sharing",
        "it cannot make the mounts of the tree slaves on kernels of July 2025 and later",
        # CRIU's commit 570621a48.
        (4, 1, 1),
        r"Failed to make mount \d+ (?:slave|private|shared|unbindable): Invalid argument",
        "criu/mount-v2.c",
    ),
    _bug(
        "bug-mounted-file",
        "it mistakes a mounted file for a directory",
        # CRIU's commit e31828ed8.
        (4, 2),
        r"Failed to open_tree \S+/: Not a directory",
        "criu/mount-v2.c",
    ),
    _bug(
        "bug-nft-table",
        "its nftables table exists already, from the dump or from a failed restore (nft list tables)",
        # CRIU's commit 5de61a721.
        (4, 2),
        r"Could not process rule: File exists",
        "criu/net.c",
    ),
    _bug(
        "bug-socket-credentials",
        "it reads socket options that kernels since 6.16 have only for unix sockets",
        # CRIU's commit 4b7398595.
        (4, 2),
        # 1 is SOL_SOCKET; 16 and 34 are SO_PASSCRED and SO_PASSSEC.
        r"Can't get 1:(?:16|34) opt: Operation not supported",
        "criu/sockets.c",
    ),
    _bug(
        "bug-iptables-nft",
        "it cannot remove its rules if iptables works over nftables",
        # CRIU's commit 0ab2f9e97.
        (4, 0),
        r"CHAIN_(?:USER_)?DEL failed .{0,60}: chain CRIU",
        "criu/net.c",
    ),
    _bug(
        "bug-pagemap-scan",
        "its request for written pages is unknown to this kernel",
        # CRIU's commit e0f91e66e.
        (4, 0),
        # Linux 6.7 has PAGEMAP_SCAN, but not yet its PAGE_IS_SOFT_DIRTY.
        r"PAGEMAP_SCAN: Invalid argument",
        "criu/pagemap-cache.c",
    ),
    _bug(
        "bug-arm-vdso",
        "it cannot read the vDSO of newer kernels on arm64",
        # CRIU's commits 8a06ca27c and 62a4a5874.
        (4, 1),
        r"vdso: Not all dynamic entries are present",
        "criu/pie-util-vdso.c",
    ),
    _bug(
        "bug-cgroup-mount",
        "it mounts cgroup v2 with options that this kernel does not know",
        # CRIU's commit 9943dcde1.
        (3, 19),
        r"Unable to mount cgroup2 : Invalid argument",
        "criu/cgroup.c",
    ),
    _bug(
        "bug-bpf-details",
        "it cannot parse what this kernel says about a BPF map",
        # CRIU's commits 247cdc90d and 5b872c718.
        (3, 17),
        r"error parsing \[map_type:",
        "criu/proc_parse.c",
    ),
    _bug(
        "bug-overlay-removed",
        "it mistakes a removed file in a lower layer of overlayfs for one that has another name",
        # CRIU's commit d57f27bc9.
        (3, 17),
        # There, fstat(2) counts one link, but linkat(2) says ENOENT.
        r"trim failed: @\S{0,200}link_remap",
        "criu/files-reg.c",
    ),
    _bug(
        "bug-timer-thread",
        "it restores timers that notify a thread (SIGEV_THREAD) without that thread",
        # CRIU's commit 80079fbb0.
        (3, 16),
        # -22: EINVAL, because the ID of the thread is missing.
        r"Can't restore posix timers -22",
        "criu/pie/restorer.c",
    ),
    _bug(
        "bug-open-symlink",
        "it cannot save a symbolic link that is open (O_PATH)",
        # CRIU's commit 1936608ce.
        (3, 14),
        # The mode in octal: 12 is S_IFLNK (criu/files-ext.c:94).
        r"Can't dump file \d+ of that type \[12\d{4}\]",
        "criu/files-ext.c",
    ),
    _bug(
        "bug-open-path",
        "it cannot save a file that is open as a path only (O_PATH)",
        # CRIU's commit f167d1f4e.
        (3, 14),
        # -9: EBADF, which fcntl(2) answers for a descriptor of O_PATH.
        r"fcntl\(\d+, F_GETOWN_EX\) -> -9|Can't get owner signum on \d+: Bad file descriptor",
        "criu/pie/parasite.c",
    ),
    _bug(
        "bug-read-only-root",
        "it needs a writable /tmp in the container, whose root is read only (mount a tmpfs there)",
        # CRIU's commits be43c3b84 and 76e4d31a3.
        (3, 14),
        r"Can't create a temporary directory: Read-only file system",
        "criu/mount.c",
    ),
    _bug(
        "bug-inotify-wait",
        "a signal interrupts it while it waits for events of inotify",
        # CRIU's commit 2237666ac.
        (3, 14),
        # -4: EINTR, by the SIGCHLD of a helper.
        r"Failed to poll from inotify fd: -4",
        "criu/pie/restorer.c",
    ),
    _bug(
        "bug-vector-registers",
        "it needs vector registers (AVX) that the program has not used",
        # CRIU's commit 11b3825ca.
        (3, 13),
        r"Corruption in XFEATURE_YMM area \(expected \d+ but 0 obtained\)",
        "criu/arch/x86/crtools.c",
    ),
    _bug(
        "bug-compact-registers",
        "it does not know the compact format in which this kernel keeps registers (xsaves)",
        # CRIU's commit 7680c27b0.
        (3, 11),
        r"Unsupported compact xsave frame",
        "criu/arch/x86/cpu.c",
    ),
    _bug(
        "bug-unnamed-file",
        "it cannot reopen a file that was created without a name (O_TMPFILE)",
        # CRIU's commit 93b34b6cb.
        (3, 9),
        r"Can't open file \S*/?#\d+ on restore: Not a directory",
        "criu/files-reg.c",
    ),
    _bug(
        "bug-mapped-address",
        "it cannot rebuild an IPv6 socket that has an IPv4 connection",
        # CRIU's commit 6e770e50b.
        (3, 7),
        r"libnet_write_raw_ipv6\(\)",
        "soccr/soccr.c",
    ),
    _bug(
        "bug-net-priorities",
        "it writes the network priorities of a cgroup at once, but the kernel takes them one by one",
        # CRIU's commit b8ddf85d4.
        (3, 7),
        r"cg: Failed writing lo 0",
        "criu/cgroup.c",
    ),
    _bug(
        "bug-tcp-details",
        "it expects TCP_INFO of the kernel to have one certain size",
        # CRIU's commit 598790eb4.
        (3, 6),
        r"Failed to obtain TCP_INFO: (?:No error information|Success)",
        "soccr/soccr.c",
    ),
    _bug(
        "bug-pid-maximum",
        "it does not raise the PID limit of this host to the PIDs of the tree (sysctl kernel.pid_max)",
        # CRIU's commit 42cc04fc9.
        (2, 5),
        r"Write \d+ to \S*ns_last_pid: Invalid argument",
        "criu/cr-restore.c",
    ),
)
"""Each counts only if the log is of an earlier release or does not show one: then it is the likeliest cause."""
