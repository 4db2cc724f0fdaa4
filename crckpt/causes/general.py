"""What is said when no line names a cause of its own: consequences, and what the kernel answered. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

GENERAL = (
    Cause(
        "script",
        "an action script of CRIU failed",
        "try it by hand; the environment variable CRTOOLS_SCRIPT_ACTION says for what it was called",
        "Script .+ exited with|One of more action scripts failed|script failed with"
        "|RPC client reported script error|-re(?:store|sume) script ret code",
        "criu/action-scripts.c",
    ),
    Cause(
        "killed",
        "process {pid} was killed by signal {signal} before it was restored",
        "see whether memory ran out: journalctl -k -g oom",
        r"\b(?P<pid>\d+) killed by signal (?P<signal>(?!(?:4|7|11)\b)\d+)",
        "criu/cr-restore.c",
    ),
    Cause(
        "crashed",
        "this CRIU is too old for the C library or the kernel (before 3.17 it does not know the restartable"
        " sequences of glibc 2.35); a process crashed during the freeze or the restore",
        "scripts/install-criu; if CRIU is new, check the images: crckpt verify REF",
        r"(?:killed|stopped) by signal (?:4|7|11)\b|Task (?:stopped|signaled) with (?:4|7|11)\b",
        "criu/cr-restore.c",
        sure=False,
    ),
    Cause(
        "killed-frozen",
        "process {pid} was killed by signal or ended with status {signal} while CRIU worked in it",
        "see whether memory ran out: journalctl -k -g oom; else try again",
        r"\b(?P<pid>\d+) (?:was (?:killed|stopped) by|exited with) (?P<signal>\d+) unexpectedly",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "ended-early",
        "a process ended before the restore was whole",
        "see which and why: crckpt explain -v LOG",
        r"Child \d+ died too early|\d+ exited, status=\d+|Restorer fail |Failed to wait on helpers and zombies",
        "criu/cr-restore.c",
    ),
    Cause(
        "not-run-inside",
        "CRIU could not run its code inside process {pid}",
        "see whether something forbids it: journalctl -k -g denied",
        r"Can't infect \(pid: (?P<pid>\d+)\) with parasite",
        "criu/cr-dump.c",
    ),
    Cause(
        "kernel-probe",
        "CRIU could not find out what this kernel can do ({what})",
        "run crckpt as root; if that is so already: scripts/install-criu",
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
        "a file system is read only",
        "make it writable: mount -o remount,rw DIRECTORY",
        "Read-only file system$",
        "errno EROFS",
    ),
    Cause(
        "device-error",
        "a disk cannot be read or written",
        "see what the kernel says: dmesg",
        "(?:Input/output|I/O) error$",
        "errno EIO",
    ),
    Cause(
        "not-permitted",
        "the kernel does not permit it",
        "run crckpt as root; in a container: with more capabilities, and without its seccomp profile",
        "(?:Operation not permitted|Permission denied)$",
        "errno EPERM, EACCES",
    ),
    Cause(
        "process-gone",
        "a process ended while CRIU worked on it",
        "try again",
        r"^(?!.*Unable to detach from).*No such process$|Can't open \d+/\S+ on procfs: No such file",
        "errno ESRCH",
    ),
    Cause(
        "kernel-lacks",
        "this kernel lacks a function that CRIU needs",
        "crckpt doctor says which; boot a newer kernel",
        "Function not implemented$|NSID is not supported|[Kk]ernel (?:doesn't|does not) (?:support|have)",
        "errno ENOSYS",
    ),
)

VAGUE = (
    Cause(
        "in-use",
        "another process uses something that CRIU needs",
        "find it: crckpt explain -v LOG, then fuser -v FILE or ss -lptn",
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
    Cause(
        "kernel-refuses",
        "this CRIU does not fit this kernel, which refuses one of its requests",
        "scripts/install-criu, or boot the kernel of the dump",
        "(?:Invalid argument|Bad address|Inappropriate ioctl for device|Not a tty|(?:Operation n|N)ot supported)$",
        "errno EINVAL, EFAULT, ENOTTY, ENOTSUP",
        sure=False,
    ),
)

AREAS = (
    (r"criu/memfd\.c", "memfd"),
    (r"criu/shmem\.c", "shared-memory"),
    (r"criu/(?:timerfd|pie/parasite-timers)\.c", "timerfd"),
    (r"criu/eventpoll\.c", "epoll-again"),
    (r"criu/fsnotify\.c", "watch"),
    (r"criu/tty\.c", "terminal-again"),
    (r"criu/apparmor\.c", "security-profile"),
    (r"criu/lsm\.c", "security-label"),
    (r"criu/(?:vdso|pie-util-vdso|pie/util-vdso|pie/parasite-vdso)\.c", "vdso"),
    (r"criu/kerndat\.c", "kernel-probe"),
    (r"criu/uffd\.c", "lazy-server"),
    (r"criu/page-xfer\.c", "page-server"),
    (r"criu/(?:img-streamer|img-remote|img-proxy|img-cache)\.c", "streamer"),
    (r"criu/mount(?:-v2)?\.c", "mount-refused"),
    (r"criu/tun\.c", "tun-again"),
    (r"soccr/\S+\.c|criu/sk-tcp\.c", "tcp-rebuild"),
    (r"criu/sk-unix\.c", "unix-name"),
    (r"criu/(?:protobuf|bfd)\.c", "images-damaged"),
    (r"plugins/cuda/\S+\.c|cuda_plugin\.c", "cuda-plugin"),
    (r"amdgpu_\S+\.c", "amdgpu-plugin"),
)
"""(source file of CRIU, most likely cause) of an error that no pattern matches."""

WARNED = (
    Cause(
        "cannot-trace",
        "process {pid} cannot be stopped: {why}",
        "look at it: grep -E 'State|TracerPid|Uid' /proc/{pid}/status",
        r"Unable to interrupt task: (?P<pid>\d+) \((?P<why>.*)\)",
        "compel/src/lib/infect.c",
    ),
)
"""Said of every process that ends while the tree is frozen too: it counts only where nothing else was said."""
