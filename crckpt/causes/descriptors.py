"""Descriptors that are not files on a disk: watches, epoll, pidfds, BPF maps, automounts. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

DESCRIPTORS = (
    Cause(
        "watch",
        "an inotify or fanotify watch is on a file system where CRIU cannot restore it",
        "watch a directory on a disk file system",
        "Can't dump that handle|Can't find suitable path for handle|Failed to resolve [0-9a-f]+:[0-9a-f]+"
        "|Can't open file handle for",
        "criu/fsnotify.c",
    ),
    Cause(
        "watch-mount",
        "an inotify or fanotify watch is on a file system that is not mounted here",
        "mount it where CRIU sees it, or remove the watch in the program",
        "Unable to lookup a mount by dev (?:0x)?[0-9a-f]|Can't find (?:mount )?mnt_id (?:0x)?[0-9a-f]",
        "criu/fsnotify.c",
    ),
    Cause(
        "watch-gone",
        "{path}, which the program watches (inotify, fanotify), is missing",
        "create it again; for a cgroup file use a host with the same cgroup version",
        r"fsnotify: \s{0,4}Unable to open (?P<path>.+): No such file",
        "criu/fsnotify.c",
    ),
    Cause(
        "watch-limit",
        "an inotify or fanotify watch cannot be restored: its user has too many",
        "raise the limits: sysctl -w fs.inotify.max_user_watches=1048576 fs.inotify.max_user_instances=8192",
        # inotify_add_watch(2), inotify_init(2), fanotify_init(2)
        r"(?:Can't create inotify for|Can't add watch for|Can't init fanotify mark)[^:]*: "
        "(?:No space left on device|Too many open files)",
        "criu/fsnotify.c",
    ),
    Cause(
        "watch-of-nothing",
        "the program watches something with inotify, but for no event: CRIU cannot add such a watch",
        "remove it in the program (inotify_rm_watch), or name an event there",
        # CRIU leaves out all flags but the events.
        "Can't add watch for[^:]*: Invalid argument",
        "criu/fsnotify.c",
    ),
    Cause(
        "watch-refused",
        "an inotify or fanotify watch cannot be restored: {why|the kernel refuses it}",
        "check what it watches: it must exist, and the program's user must be able to read it: crckpt show REF",
        r"(?:Can't create inotify for|Can't add watch for|Can't init fanotify mark)[^:]*: "
        "(?!No space left|Too many open|Invalid argument)(?P<why>.+)"
        "|Adding fanotify (?:ignored-)?mask",
        "criu/fsnotify.c",
        by_criu="check what it watches: it must exist, and the program's user must be able to read it",
    ),
    Cause(
        "epoll-closed",
        "an epoll of PID {pid} watches a descriptor that is closed there but open elsewhere",
        "remove it from the epoll before it is closed (EPOLL_CTL_DEL)",
        r"(?:Escaped/closed fd descriptor \d+ on pid |Dump eventpoll \(pid: )(?P<pid>\d+)",
        "criu/eventpoll.c",
    ),
    Cause(
        "epoll-elsewhere",
        "PID {builder} has an epoll of PID {pid}, but not all that it watches; a restore makes it in PID {builder}",
        "close the epoll in PID {builder}",
    ),
    Cause(
        "epolls-unexamined",
        "PID {pid} has {count} epolls with so many files that crckpt did not examine them: CRIU takes long to save "
        "them, and refuses one of a file that is closed",
        "remove from its epolls what the program does not wait for",
    ),
    Cause(
        "epoll-again",
        "an epoll cannot be restored: what it watches is missing, or is now a file or /dev/null",
        "restore it with a pipe for the output of the program (| cat), not a file",
        "Can't add event on|No epoll FD for",
        "criu/eventpoll.c",
    ),
    Cause(
        "timerfd",
        "this kernel gives no details of timerfd",
        "boot a kernel with CONFIG_CHECKPOINT_RESTORE",
        "No timerfd support for c/r|No data left in proc file while parsing timerfd",
        "criu/timerfd.c",
    ),
    Cause(
        "timerfd-clock",
        "a timerfd of the tree counts by clock {clock}, and CRIU cannot save that (8 and 9 are "
        "CLOCK_REALTIME_ALARM and CLOCK_BOOTTIME_ALARM, which wake the machine)",
        "let the program use CLOCK_REALTIME or CLOCK_MONOTONIC",
        r"Unknown clock type (?P<clock>\d+)",
        "criu/timerfd.c",
    ),
    Cause(
        "pidfd-outside",
        "the tree holds a pidfd to process {pid} outside it",
        "close it in the program",
        r"pidfd pid (?P<pid>\d+) is not a part of process tree",
        "criu/pidfd.c",
    ),
    Cause(
        "pidfd-thread",
        "the tree holds a pidfd to a single thread",
        "close it in the program (PIDFD_THREAD)",
        "PIDFD_THREAD flag is currently not supported",
        "criu/pidfd.c",
    ),
    Cause(
        "pidfd-again",
        "a pidfd of the tree cannot be restored",
        "use a kernel with pidfd_open (5.3), and allow it in the seccomp profile",
        "Can't create pidfd|Could not open pidfd for|pidfd_(?:open|getfd) syscall is not supported",
        "criu/pidfd.c",
    ),
    Cause(
        "bpf-map",
        "the tree holds a BPF map of type {type}, but CRIU can save only hashes and arrays",
        "close it in the program",
        r"does not currently support dumping BPF map type (?P<type>\d+)",
        "criu/bpfmap.c",
    ),
    Cause(
        "bpf-map-refused",
        "a BPF map of the tree cannot be saved or restored",
        "run crckpt as root (CAP_BPF)",
        "Can't create bpfmap|Can't freeze bpfmap|Can't load key-value pairs to BPF map"
        "|Can't perform a batch lookup on BPF map|Could not get BPF map info",
        "criu/bpfmap.c",
    ),
    Cause(
        "descriptors-refused",
        "the program's descriptors cannot be passed to CRIU (error {code})",
        "raise the limit of open files: ulimit -n 1048576",
        r"send_fds failed \((?!-22\))(?P<code>-\d+)\)",
        "criu/pie/parasite.c",
    ),
    Cause(
        "kcmp",
        "this kernel does not tell which descriptors are shared (kcmp)",
        "allow kcmp in the seccomp profile of the container, or boot a kernel with CONFIG_KCMP",
        "kcmp(?:-epoll)? failed: pid|System call kcmp is not supported",
        "criu/kcmp-ids.c",
    ),
    Cause(
        "foreign-proc",
        "the /proc of a process in a user namespace belongs to another namespace",
        "mount /proc inside the program's namespace",
        "can't dump unprivi\\w{4,8} task whose /proc doesn't belong to it",
        "criu/pie/parasite.c",
    ),
    Cause(
        "autofs-busy",
        "the automounter {pid} has requests waiting",
        "try again in a moment",
        r"Process (?P<pid>\d+) autofs pipe fd \d+ is not empty",
        "criu/autofs.c",
    ),
    Cause(
        "autofs-outside",
        "an automount is served by a process outside the tree",
        "unmount it: umount DIRECTORY",
        r"Autofs \d+ is alive, but unreachable|Failed to find read pipe fd \(ino"
        "|Abandoned mount or control was delegated|Non-catatonic mount without master",
        "criu/autofs.c",
    ),
    Cause(
        "unread",
        "a dump does not save the unread data of descriptor {fd} of PID {pid} ({kind}): a restore loses it",
        "",
    ),
    Cause(
        # CRIU restores eventfd(counter, 0) and then file flags, of which EFD_SEMAPHORE is none (criu/eventfd.c:76).
        "eventfd-semaphore",
        "fd {fd} of PID {pid} is an eventfd in semaphore mode; after a restore it is a plain eventfd, where one read "
        "empties the counter",
        "",
    ),
    Cause(
        "bpf-map-support",
        "fd {fd} of PID {pid} is a BPF map, which only a CRIU built with libbpf can save (Debian's is not)",
        "close it in the program, or use such a CRIU: --criu PATH",
    ),
    Cause(
        "descriptors-for-rounds",
        "CRIU needs about {needed} descriptors to copy the tree while it runs, but may open only {limit}",
        "raise the limit (ulimit -Hn {more}; systemd: LimitNOFILE={more}; docker: --ulimit nofile={more}), allow "
        "larger pipes (sysctl -w fs.pipe-max-size=4194304), give crckpt the capability CAP_SYS_RESOURCE, or leave out "
        "--pre-copy or pre-dump (a longer freeze)",
    ),
    Cause(
        "untested-kind",
        "no test covers the restore of: {kind} ({where})",
        "try its restore before the tree is ended: --rehearse; or leave out --stop, so that the tree runs on; or end "
        "it anyway: --force",
    ),
)
