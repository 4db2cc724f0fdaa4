"""Errors of each part of CRIU, for lines that no narrower cause matches. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

_TRY = "read what the kernel answered: crckpt explain -v LOG"

PARTS = (
    Cause(
        "automount",
        "CRIU cannot save or restore an automount (autofs) of the tree",
        "unmount it before the dump: umount DIRECTORY",
        r"Failed to (?:mount autofs to|find (?:fd|pgrp|timeout|minproto|maxproto) option|create autofs dentry)"
        r"|Failed to set \S+ catatonic",
        "criu/autofs.c",
    ),
    Cause(
        "cgroup-access",
        "CRIU cannot save or restore a control group of the tree",
        "check that /sys/fs/cgroup is mounted and writable; with criu: --manage-cgroups=ignore",
        r"cg: (?:controller \S+ not found|failed (?:walking|statting)|(?:read from|write to) cgroup\.subtree_control"
        r"|dumping (?:known|global) properties|cgroupd: (?![Cc]an't move)|failed to start cgroupd|couldn't scan oom"
        r"|Failed scanning"
        r"|No cg_controller_entry|No set \d)|from cgroupd -?\d",
        "criu/cgroup.c",
    ),
    Cause(
        "file-access",
        "CRIU cannot save or reopen a file of the tree",
        f"check that it exists, and where it is mounted; {_TRY}",
        r"Unable to statfs fd \d|Can't (?:stat path|fstat opened file|fstat exe link|find task (?:cwd|root) file"
        r"|dup local fd \d|setup \d+ file owner pid(?!: No such process))|mount is not found for ghost",
        "criu/files-reg.c",
        sure=False,
    ),
    Cause(
        "file-system",
        "CRIU cannot save or restore a file system of the tree",
        f"unmount it before the dump: findmnt; {_TRY}",
        r"Unable to dump a file system for \d|binfmt_misc: (?:bad|can't|unsupported)|invalid btrfs options"
        r"|failed to dump fs |\S isn't empty$",
        "criu/filesystems.c",
        sure=False,
    ),
    Cause(
        "lock-access",
        "CRIU cannot save or restore a file lock of the tree",
        "release it in the program; list all locks: lslocks",
        "Dump file lock failed|Can't downgrade lock back|Bogus lock test result|Invalid lock entry",
        "criu/file-lock.c",
    ),
    Cause(
        "plugin-file",
        "a CRIU plugin saved a file of the checkpoint, but no plugin here can restore it",
        "install the plugin that the dump used, and pass its directory to criu: --libdir DIRECTORY",
        r"files-ext\.c:\d{1,6}\): Unable to restore (?:0x)?[0-9a-f]",
        "criu/files-ext.c",
    ),
    Cause(
        "ipc-access",
        "CRIU cannot save System V messages, semaphores or shared memory of the tree, or make them again",
        f"restore into a new IPC namespace (unshare --ipc); {_TRY}",
        r"Failed to (?:get (?:stats for IPC|msq|sem|shm)|send IPC message|copy IPC message|attach (?:IPC )?sh"
        r"|set (?:msq|sem|shm|semaphores)|read max IPC|prepare (?:IPC|messages|semaphores|shm))"
        r"|Unsupported message size: \d|(?:msg|sem|shm)ctl(?:\(SHM_INFO\))? failed",
        "criu/ipc_ns.c",
    ),
    Cause(
        "memory-access",
        "CRIU cannot save or restore memory of the tree",
        f"check that there is free memory and no limit; {_TRY}",
        r"Can't (?:fixup VMA's fd|unmap guard page|map restorer code|mmap section for restore code|move task args"
        r"|remap restorer blob|grow rst mem|mremap rst mem|unmap restorer)|should_dump_page failed"
        r"|Unable to (?:map a guard page|unmap \(?0x(?!.{0,60}: -22))",
        "criu/mem.c",
        sure=False,
    ),
    Cause(
        "image-write",
        "CRIU cannot write an image: {why|see the log}",
        "check the file system of the images: df, dmesg; for shared memory over 2 GiB use a newer CRIU: "
        "crckpt install-criu",
        r"Can't write (?:img file|image|buffer)(?:: (?P<why>.{1,100}))?|Failed to write IPC",
        "criu/image.c",
        sure=False,
    ),
    Cause(
        "namespace-access",
        "CRIU cannot enter, save or restore a namespace of the tree",
        f"run crckpt as root of the host; {_TRY}",
        r"Can't (?:open|get) ns file|Unable to stat /proc/\d+/ns/|uns: (?:daemon|recv|send|Async)"
        r"|Namespaces dumping finished with error|Unable to set (?:group|user) ID"
        r"|Unable to drop supplementary groups|set[gu]id failed while joining|Can't find suitable NS ID"
        r"|failed to start usernsd|Error calling uname",
        "criu/namespaces.c",
        sure=False,
    ),
    Cause(
        "network-access",
        "CRIU cannot save or restore a network namespace of the tree",
        f"restore as root (CAP_NET_ADMIN), with the modules of its devices; {_TRY}",
        r"Unable to (?:create a veth pair|specify ifindex in the target|dump more than one netns|find the \d+ master)"
        r"|Can't (?:add interface \S+ to bridge|get (?:flags|index) of|find mount namespace \d)"
        r"|couldn't set flags on|macvlan mode required|(?:Missing|no data for|failed ot parse|failed to parse) "
        r"(?:macvlan|sit)\b|[Ff]ailed to \S+ \S{0,40}/<(?:confs|sysctls)>",
        "criu/net.c",
        sure=False,
    ),
    Cause(
        "pipe-access",
        "CRIU cannot save or restore a pipe or named pipe of the tree",
        "wait until the program has emptied its pipes, and raise the limits on pipes: sysctl "
        f"fs.pipe-user-pages-soft=0; {_TRY}",
        r"Unable to reopen the pipe|Can't (?:create pipe for stealing|map mem for pipe buffers)",
        "criu/pipes.c",
        sure=False,
    ),
    Cause(
        "proc-format",
        "CRIU cannot parse a file of /proc: it is too old for the kernel, or a process has ended in the meantime",
        "try again; if it fails, install a newer CRIU: crckpt install-criu",
        r"stat for \d+ is corrupted|Parsing \d+'s stat failed|error parsing \[.{0,300}\] for \d"
        r"|No records of type \d+ found in fdinfo|two nonconsecutive vvar|Unexpected VMA met|Bogus mapping 0x"
        r"|couldn't parse internal cgroup file|Failed parsing cgroup ",
        "criu/proc_parse.c",
        sure=False,
    ),
    Cause(
        "address-space",
        "the address space of programs on this kernel has another size than CRIU expects",
        "install a newer CRIU: crckpt install-criu, or boot a newer kernel",
        r"Unable to unmap \(0x[0-9a-f]{1,16}-0x[0-9a-f]{1,16}\): -22",
        "criu/pie/restorer.c",
        sure=False,
    ),
    Cause(
        "lazy-page",
        "CRIU cannot load a page after the restore (lazy pages): the process ended, forked or unmapped it meanwhile, or"
        " CRIU has a bug",
        "restore without --lazy-pages, or with a newer CRIU: crckpt install-criu",
        r"Error during (?:UFFD copy|remaining page cop)|Can't (?:read uffd message|handle page fault)"
        r"|[Uu]nexpected (?:fd|event|size) .{0,60}uffd|uffd: .{0,60}: (?:Can't read uffd|UFFDIO_\w+ )"
        r"|Failed to (?:uffd_copy|zero page|register)|UFFDIO_(?:COPY|ZEROPAGE)",
        "criu/uffd.c",
        sure=False,
    ),
    Cause(
        "memory-unreadable",
        "CRIU cannot read a part of the program's memory: guard pages (glibc 2.42, Linux 6.13), another kind of memory"
        " that CRIU before 4.2 does not know, or a device's",
        "install CRIU 4.2 or newer: crckpt install-criu; see what is mapped there: cat /proc/PID/smaps",
        # -14: EFAULT.
        r"Can't splice pages to pipe \(-14|process_vm_readv failed: Bad address|vmsplice: Failed to splice .{0,60}-14"
        r"|Can't read remote iovs \(Bad address",
        "criu/pie/parasite.c",
        sure=False,
    ),
    Cause(
        "mount-access",
        "CRIU cannot save or restore a mount of the tree",
        f"unmount it before the dump (findmnt), or with criu: --external mnt[PATH]:KEY; {_TRY}",
        r"No (?:root found for tree|parent found for mountpoint)|Can't find mount namespace \d|mnt: Can't switch"
        r"|mnt: Can't open directory|The file system 0x.{1,200} is inaccessible",
        "criu/mount.c",
        sure=False,
    ),
    Cause(
        "unix-access",
        "CRIU cannot save or restore a unix socket of the tree",
        f"close it in the program before the dump, or use a newer CRIU: crckpt install-criu; {_TRY}",
        r"Can't (?:make usk listen|make (?:unix socket|socketpair)|create socketpair"
        r"|shutdown unix socket|restore socket queue|clear socket's peer)|Bad unix name len"
        r"|Wrong shutdown/peer state|No socket shutdown info",
        "criu/sk-unix.c",
        sure=False,
    ),
    Cause(
        "nonlinear-mapping",
        "the program has a nonlinear mapping (remap_file_pages), which this CRIU cannot save",
        "run the program without it",
        r"Nonlinear mapping found [0-9a-f]",
        "criu/proc_parse.c",
    ),
    Cause(
        "session-order",
        "CRIU cannot restore the sessions and process groups of the tree",
        "start the program in its own session before the dump: setsid PROGRAM",
        r"Can't find a session leader for \d|Can't figure out which sid|Can't determinate with which sid"
        r"|pstree: Can't find a parent",
        "criu/pstree.c",
    ),
    Cause(
        "descriptor-clash",
        "CRIU needs a descriptor number that the program uses",
        "raise the limit of open files: ulimit -n 1048576; else try a newer CRIU: crckpt install-criu",
        r"fd \d+ already in use|sfd: \S+ busy target \d",
        "criu/servicefd.c",
    ),
    Cause(
        "socket-buffer",
        "the kernel does not let CRIU enlarge the buffer of its own socket",
        "run crckpt as root (CAP_NET_ADMIN in the first user namespace)",
        "Unable to set SO_SNDBUFFORCE/SO_RCVBUFFORCE",
        "criu/fdstore.c",
    ),
    Cause(
        "socket-access",
        "CRIU cannot save or restore a socket of the tree",
        f"restore as root (CAP_NET_ADMIN, CAP_NET_RAW); {_TRY}",
        r"Can't (?:create (?:inet|packet|netlink) sock(?!et: (?:Perm|Oper))"
        r"|(?:bind|connect) netlink socket|shutdown socket into"
        r"|get interface name \(ifindex|get socket filter|get bound dev)|Unable to (?:get protocol for netlink socket"
        r"|switch a network namespace|find a network namespace)|Unsupported socket (?:family|type): \d"
        r"|Len mismatch on \d|Unknown pair family",
        "criu/sockets.c",
        sure=False,
    ),
    Cause(
        "queue-data",
        "CRIU cannot save or restore the unread data in a socket of the tree",
        "wait until the program has read it, or raise the limits: sysctl net.core.rmem_max net.core.wmem_max",
        r"Restored skb trimmed|Unable to read packet data|Unsupported scm \d|sys_recvmsg failed"
        r"|recvmsg fail: error|setsockopt failed? ?(?:on restore|fail)?: |Failed to send packet: ",
        "criu/sk-queue.c",
    ),
    Cause(
        "sysctl",
        "CRIU cannot read or set a sysctl of the tree's namespaces: {name|see the log}",
        "load its kernel module, and mount /proc writable; with criu: --skip-non-existent-sysctls --weak-sysctls",
        r"Can't open sysctl (?P<name>[^\s:]{1,200})(?=:|$)(?!: Read-only)"
        r"|sysctl\.c:\d{1,6}\): Can't (?:read|write) (?!\d)\S{1,200}:"
        r"|Not enough (?:params|space) for \S{1,200} \(\d+ != \d",
        "criu/sysctl.c",
    ),
    Cause(
        "aufs",
        "CRIU cannot find the branches of an aufs file system",
        "use overlayfs, or criu with --aufs-root DIRECTORY",
        r"No aufs branches|aufs branches|[Ss]binfo\b",
        "criu/sysfs_parse.c",
    ),
    Cause(
        "program-missing",
        "CRIU cannot start the program {name}",
        "install it: CRIU uses ip, tar, iptables and cuda-checkpoint",
        r"(?:exec(?:vp)?\(\"?(?!ip6?tables)(?=[^)]{1,260}\) failed)"
        r"|(?=(?:cuda-checkpoint|nft|ip|tar): (?:command )?not found))(?P<name>[^\",):\s]{1,200})",
        "criu/util.c",
    ),
    Cause(
        "restorer",
        "the kernel refused a call while CRIU restored memory and threads",
        f"restore on the kernel of the dump, as root; {_TRY}",
        r"Can't restore (?:timerfd|ticks/time|membarrier|sigaction|compat sigaction|rseq_cs)"
        r"|Cannot (?:re-enable THP|restore THP)|Failed to recover futex robust list|Unable to set a thread name"
        r"|Unable to send siginfo \d|wrong aio: |Can't remove temporar|Unable to restore rseq_cs state"
        r"|Failed to (?:write \S{1,100} to /proc/|set up supplementary)|Restorer stack smash",
        "criu/pie/restorer.c",
        sure=False,
    ),
    Cause(
        "event-descriptor",
        "CRIU cannot restore an eventfd or a signalfd of the tree",
        _TRY,
        "Can't (?:create|restore params on) (?:eventfd|signalfd)",
        "criu/eventfd.c",
    ),
    Cause(
        "check-lacks",
        "criu check: this kernel or CRIU's capabilities are not sufficient: {what|see the log}",
        "run it as root outside of any container; boot a kernel with CONFIG_CHECKPOINT_RESTORE and the socket"
        " diagnostics (CONFIG_*_DIAG)",
        r"cr-check\.c:\d{1,6}\): (?!CRIU needs to have|Running as non-root|You need to be root"
        r"|One needs CAP"
        r"|sys/kernel/ns_last_pid sysctl is inaccessible: (?i:Read-only|Permission|Operation not)|/proc/<pid>/timers"
        r"|.{0,200}(?i:Permission denied|Operation not permitted)\b)(?P<what>\S.*)"
        r"|sock diag infrastructure is incomplete",
        "criu/cr-check.c",
    ),
)
SURE_PARTS = tuple(part for part in PARTS if part.sure)
UNSURE_PARTS = tuple(part for part in PARTS if not part.sure)
"""They count only if the kernel's answer is not itself a cause (`GENERAL`)."""
