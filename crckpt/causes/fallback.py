"""Causes for logs without a specific line: consequences, and answers of the kernel. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

# SIGILL, SIGBUS and SIGSEGV. 64 is the last signal, but published logs also have 127 here.
_CRASHED = r"(?:killed|stopped) by signal (?:4|7|11|6[5-9]|[7-9]\d|\d{3})\b|Task (?:stopped|signaled) with (?:4|7|11)\b"
_CRASHED += r"|was (?:killed|stopped) by (?:4|7|11) unexpectedly"

GENERAL = (
    Cause(
        "script",
        "an action script of CRIU failed",
        "run it by hand; CRTOOLS_SCRIPT_ACTION in its environment says at which step it was called",
        "Script .+ exited with|One of more action scripts failed|script failed with"
        "|RPC client reported script error|-re(?:store|sume) script ret code|restore due to script ret code",
        "criu/action-scripts.c",
    ),
    Cause(
        "criu-bug",
        "CRIU met an unexpected state, which is a bug in CRIU",
        "crckpt install-criu; if CRIU is new, report it: github.com/checkpoint-restore/criu/issues",
        r"BUG at \S{1,60}:\d",
        "include/common/bug.h",
    ),
    Cause(
        "killed",
        "process {pid} was killed by signal {signal} before it was restored",
        "check whether memory ran out: journalctl -k -g oom",
        r"\b(?P<pid>\d+) killed by signal (?P<signal>(?!(?:4|7|11|6[5-9]|[7-9]\d|\d{3})\b)\d+)",
        "criu/cr-restore.c",
    ),
    Cause(
        "crashed",
        "this CRIU is too old for the C library or the kernel (before 3.17 it does not know the restartable"
        " sequences of glibc 2.35); a process crashed during the freeze or the restore",
        "crckpt install-criu; if CRIU is new, check the images: crckpt verify REF",
        _CRASHED,
        "criu/cr-restore.c",
        sure=False,
        fixed=(3, 17),
        by_criu="use a newer CRIU: crckpt install-criu; if it is new, take another copy of the images",
    ),
    Cause(
        "crashed-later",
        "a process crashed during the freeze or the restore: this CRIU does not know a feature of the kernel, the C"
        " library or the CPU (before 4.1: the vDSO of Linux 6.13, pointer authentication of arm64), or the CPU differs"
        " from that of the dump",
        "crckpt install-criu; restore on a machine like that of the dump; check the images: crckpt verify REF",
        _CRASHED,
        "criu/cr-restore.c",
        sure=False,
        by_criu="use a newer CRIU: crckpt install-criu; restore on a machine like that of the dump",
    ),
    Cause(
        "killed-frozen",
        "process {pid|(not named)} was killed or ended (status {signal|not known}) while CRIU worked in it",
        "check whether memory ran out: journalctl -k -g oom; else check what ends it (systemd, the "
        "container engine), and try again",
        r"\b(?P<pid>\d+) (?:was (?:killed|stopped) by|exited with) (?P<signal>(?!(?:4|7|11)\b)\d+) unexpectedly"
        r"|Task (?:exited|signaled|stopped) with \d+",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "ended-early",
        "a process ended before the restore was complete",
        "read which and why: crckpt explain -v LOG",
        r"Child \d+ died too early|\d+ exited, status=\d+|Restorer fail |[Ff]ailed to wait on helpers and zombies",
        "criu/cr-restore.c",
    ),
    Cause(
        "not-run-inside",
        "CRIU cannot run its code inside process {pid|(not named)}",
        "check whether something forbids it: journalctl -k -g denied",
        r"Can't infect \(pid: (?P<pid>\d+)\) with parasite",
        "criu/cr-dump.c",
    ),
    Cause(
        "kernel-probe",
        "CRIU could not find out what this kernel can do ({what})",
        "run crckpt as root; if it runs as root already: crckpt install-criu",
        r"\b(?P<what>\w+) (?:has )?failed when initializing kerndat"
        "|Could not initialize kernel features detection",
        "criu/kerndat.c",
    ),
    Cause(
        "enter-namespace",
        "CRIU may not enter the {kind} namespace of the tree",
        "run crckpt as root of the host",
        r"Can't setns \d+/(?P<kind>\w+)",
        "criu/namespaces.c",
    ),
    Cause(
        "read-only",
        "a file system is read-only",
        "make it writable: mount -o remount,rw DIRECTORY",
        "Read-only file system$",
        "errno EROFS",
    ),
    Cause(
        "device-error",
        "a disk cannot be read or written",
        "read the kernel's messages: dmesg",
        "(?:Input/output|I/O) error$",
        "errno EIO",
    ),
    Cause(
        "netlink-denied",
        "a security module (SELinux, AppArmor) or seccomp forbids CRIU to ask the kernel about the network (netlink)",
        "find the denial: ausearch -m avc -ts recent; in a container: --security-opt label=disable, or --privileged",
        r"Can't send request message: (?:Permission denied|Operation not permitted)",
        "criu/libnetlink.c",
        sure=False,
    ),
    Cause(
        "not-permitted",
        "the kernel does not allow it",
        "run crckpt as root; in a container: without its seccomp profile, and with more capabilities (for mounts and"
        " namespaces SYS_ADMIN, for the network NET_ADMIN, for other processes SYS_PTRACE, for PIDs"
        " CHECKPOINT_RESTORE)",
        "(?:Operation not permitted|Permission denied)$",
        "errno EPERM, EACCES",
    ),
    Cause(
        "stale-mount",
        "a network or FUSE file system does not answer",
        "find it: df; then unmount it: umount --lazy DIRECTORY",
        r"Stale (?:NFS )?file handle$|\b(?:stat|statfs|open)\w*\b.{0,300}: Transport endpoint is not connected$",
        "errno ESTALE, ENOTCONN",
    ),
    Cause(
        "family-unknown",
        "this kernel lacks a socket family or protocol that the tree or CRIU needs",
        "load its module (modprobe -a ipv6 af_packet nf_tables), or boot a kernel that has it",
        r"(?:Address family|Protocol) not supported(?: by protocol)?$|Socket type not supported$",
        "errno EAFNOSUPPORT, EPROTONOSUPPORT",
    ),
    Cause(
        "process-gone",
        "a process ended while CRIU processed it",
        "try again",
        r"^(?!.*Unable to detach from).*No such process$|Can't open \d+/\S+ on procfs: No such file",
        "errno ESRCH",
    ),
    Cause(
        "kernel-lacks",
        "this kernel lacks a function that CRIU needs",
        "find which: crckpt doctor; boot a newer kernel",
        "Function not implemented$|NSID is not supported|[Kk]ernel (?:doesn't|does not) (?:support|have)",
        "errno ENOSYS",
        by_criu="find which: criu check --all; boot a newer kernel",
    ),
)

VAGUE = (
    Cause(
        "in-use",
        "another process uses something that CRIU needs",
        "find it: crckpt explain -v LOG, then fuser -v FILE (package psmisc) or ss -lptn (package iproute2)",
        "(?:Address (?:already )?in use|(?:Device or r|R)esource busy|Text file busy)$",
        "errno EADDRINUSE, EBUSY, ETXTBSY",
        sure=False,
    ),
    Cause(
        "missing",
        "a file that CRIU needs is missing",
        "find it: crckpt explain -v LOG",
        "No such file or directory$",
        "errno ENOENT",
        sure=False,
    ),
)

STEPS = (
    (r"Can't dump (?:posix timers|itimers)", "timers"),
    (r"Can't dump page|Collect mappings|Dump mappings", "memory-access"),
    (r"Collect fds|Dump files|Unable to open fd=", "file-access"),
    (r"Dump cgroup|Can't make cgroup id", "cgroup-access"),
    (r"Can't make \w{1,10}ns id|Namespaces dumping finished", "namespace-access"),
    (
        r"Can't (?:infect|init thread|stop daemon|cure)|Command \d{1,5} for daemon failed|Parasite (?:exited|failed)",
        "not-run-inside",
    ),
)
"""The step at which CRIU failed, from its message after another error: reported if there is no other. The last one says
least."""

UNFIT = (
    Cause(
        "kernel-refuses",
        "this CRIU does not match this kernel, which refuses one of its requests",
        "crckpt install-criu, or boot the kernel of the dump",
        "(?:Invalid argument|Bad address|Inappropriate ioctl for device|Not a tty|(?:Operation n|N)ot supported)$",
        "errno EINVAL, EFAULT, ENOTTY, ENOTSUP",
        sure=False,
    ),
)

AREAS = (
    (r"memfd\.c", "memfd"),
    (r"shmem\.c", "shared-memory"),
    (r"(?:timerfd|pie/parasite-timers)\.c", "timerfd"),
    (r"eventpoll\.c", "epoll-again"),
    (r"(?:fsnotify|irmap)\.c", "watch"),
    (r"tty\.c", "terminal-again"),
    (r"apparmor\.c", "security-profile"),
    (r"lsm\.c", "security-label"),
    (r"(?:arch/\w+/)?(?:vdso|vdso-pie|pie-util-vdso|pie/util-vdso|pie/parasite-vdso|vdso-compat)\.c", "vdso"),
    (r"(?:arch/\w+/)?kerndat\.c", "kernel-probe"),
    (r"(?:arch/\w+/|compel/\S+/)?cpu\.c", "cpu"),
    (r"arch/\w+/(?:crtools|sigframe|sigaction_compat|thread_area)\.c|compel/arch/\S+/thread_area\.c", "registers"),
    (r"(?:arch/\S+/)?shstk\.[ch]", "shadow-stack"),
    (r"uffd\.c", "lazy-page"),
    (r"page-xfer\.c", "page-server"),
    (r"(?:img-streamer|img-remote|img-proxy|img-cache)\.c", "streamer"),
    (r"mount(?:-v2)?\.c", "mount-access"),
    (r"tun\.c", "tun-again"),
    (r"soccr/\S+\.c|sk-tcp\.c", "tcp-rebuild"),
    (r"sk-unix\.c", "unix-access"),
    (r"plugins/cuda/\S+\.c|cuda_plugin\.c", "cuda-plugin"),
    (r"(?:plugins/amdgpu/)?amdgpu_\S+\.c", "amdgpu-plugin"),
)
"""(source file of CRIU, most likely cause) for an error that no pattern matches."""

WIDE_AREAS = (
    (r"(?:timer|posix-timer)\.c", "timers"),
    (r"(?:eventfd|signalfd)\.c", "event-descriptor"),
    (r"seccomp\.c", "seccomp-filter"),
    (r"(?:pagemap-cache|page-pipe)\.c", "page-map"),
    (r"pagemap\.c", "pages-cut"),
    (r"filesystems\.c", "file-system"),
    (r"autofs\.c", "automount"),
    (r"sysfs_parse\.c", "aufs"),
    (r"net\.c", "network-access"),
    (r"libnetlink\.c", "netlink"),
    (r"netfilter\.c", "packets-not-held"),
    (r"sk-queue\.c", "queue-data"),
    (r"(?:sockets|sk-inet|sk-netlink|sk-packet)\.c|include/sk-inet\.h", "socket-access"),
    (r"bfd\.c", "proc-format"),
    (r"(?:protobuf|image)\.c", "images-damaged"),
    (r"plugin\.c", "plugin-broken"),
    (r"action-scripts\.c", "script"),
    (r"bpfmap\.c", "bpf-map-refused"),
    (r"cgroup-props\.c", "cgroup-properties"),
    (r"cgroup\.c", "cgroup-access"),
    (r"(?:config|crtools)\.c", "arguments"),
    (r"cr-check\.c", "check-lacks"),
    (r"cr-dedup\.c", "parent-pages"),
    (r"cr-service\.c", "service-request"),
    (r"(?:fdstore|servicefd)\.c", "descriptor-clash"),
    (r"file-lock\.c", "lock-access"),
    (r"files-reg\.c|files\.c", "file-access"),
    (r"files-ext\.c", "plugin-file"),
    (r"(?:pipes|fifo)\.c", "pipe-access"),
    (r"(?:pidfd|pidfd-store)\.c", "pidfd-again"),
    (r"ipc_ns\.c", "ipc-access"),
    (r"(?:namespaces|uts_ns)\.c", "namespace-access"),
    (r"timens\.c", "clocks"),
    (r"sysctl\.c", "sysctl"),
    (r"(?:mem|rst-malloc)\.c", "memory-access"),
    (r"aio\.c", "aio-ring"),
    (r"proc_parse\.c", "proc-format"),
    (r"pstree\.c", "session-order"),
    (r"seize\.c", "freezer-state"),
    (r"(?:arch/\w+/|pie/)restorer\.c|sigact\.c|arch/\w+/include/asm/restorer\.h", "restorer"),
    (r"parasite-syscall\.c|pie/parasite\.c|compel/\S+\.[ch]|arch/\w+/include/asm/parasite\.h", "not-run-inside"),
)
"""The same for files that do several things."""

WARNED = (
    Cause(
        "deleted-twice",
        "CRIU removed its copy of a deleted file twice, and some releases report that as a failure",
        "check whether the program runs; else restore again, or with a newer CRIU: crckpt install-criu",
        r"Couldn't unlink remap \S.{0,300}: No such file or directory",
        "criu/files-reg.c",
        sure=False,
    ),
    Cause(
        "cannot-trace",
        "process {pid} cannot be stopped: {why}",
        "check it: grep -E 'State|TracerPid|Uid' /proc/{pid}/status; CRIU needs CAP_SYS_PTRACE in the user namespace"
        " of the process; check also: sysctl kernel.yama.ptrace_scope",
        r"Unable to interrupt task: (?P<pid>\d+) \((?P<why>.*)\)",
        "compel/src/lib/infect.c",
    ),
)
"""CRIU also writes this for every process that ends during the freeze: it counts only if there is no other message."""
