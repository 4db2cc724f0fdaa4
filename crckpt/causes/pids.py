"""PIDs of a restored tree, and its needs for CPU and kernel. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

_IN_NEW_NAMESPACE = "restore it in a new PID namespace: unshare --pid --fork --mount-proc criu restore"

RESTORED = (
    Cause(
        "pid-limit",
        "{number|a PID of the checkpoint} is above the PID limit of this host",
        "sysctl -w kernel.pid_max=4194304",
        # clone3(2) refuses a `set_tid` above kernel.pid_max with EINVAL.
        r"Can't fork for \d+: Invalid argument|Can't set kernel pid_max=",
        "criu/cr-restore.c",
    ),
    Cause(
        "clone-refused",
        "clone3, by which CRIU chooses PIDs, gives an answer that no Linux kernel gives ({why}): a"
        " seccomp profile of an old container engine forbids it, or a kernel has a part of it only (Oracle's 5.4)",
        "update docker and libseccomp, or start the container with --security-opt seccomp=unconfined; else boot"
        " another kernel",
        # CRIU asks with a wrong `set_tid`: ENOSYS, E2BIG and EINVAL tell what the kernel has (criu/kerndat.c:1461).
        r"Unexpected error from clone3\s?: (?P<why>.+)",
        "criu/kerndat.c",
        sure=False,
    ),
    Cause(
        "process-limit",
        "no more processes are allowed",
        "raise the limits: ulimit -u 100000, and pids.max of the cgroup",
        r"(?:Can't fork(?: for \d+)?|fork(?:\(\) failed)?|failed to fork\(\)): Resource temporarily unavailable"
        # -11: EAGAIN.
        r"|Unable to create a thread: -11\b",
        "criu/cr-restore.c",
    ),
    Cause(
        "pid-choice",
        "CRIU is not allowed to choose PIDs",
        "restore as root (CAP_CHECKPOINT_RESTORE), or use --new-pid-namespace",
        r"Can't fork for \d+: Operation not permitted|Setting PID failed|Can't set last_pid"
        "|can't open last pid fd|(?:Can't|Unable to) (?:set|write) .*ns_last_pid"
        "|ns_last_pid(?: sysctl is inaccessible)?: (?:Read-only|Permission|Operation not)"
        # -1: EPERM.
        r"|Unable to create a thread: -1\b",
        "criu/cr-restore.c",
        by_criu=f"restore as root (CAP_CHECKPOINT_RESTORE), or {_IN_NEW_NAMESPACE}",
    ),
    Cause(
        "fork-pid",
        "PID {pid} is taken",
        "end the process that has it, wait for it, or use --new-pid-namespace",
        r"Can't fork for (?P<pid>\d+): File exists",
        "criu/cr-restore.c",
        by_criu=f"end the process that has it, wait for it, or {_IN_NEW_NAMESPACE}",
    ),
    Cause(
        "thread-taken",
        "a thread ID of the tree is taken",
        "end the thread that has it (ps -e -L -o pid,lwp,comm), or use --new-pid-namespace",
        # -17: EEXIST, of clone3(2) with a `set_tid` that is in use.
        r"Unable to create a thread: -17\b|Thread pid mismatch \d",
        "criu/pie/restorer.c",
        by_criu=f"end the thread that has it (ps -e -L -o pid,lwp,comm), or {_IN_NEW_NAMESPACE}",
    ),
    Cause(
        "pid-other",
        "process {pid} got another PID than at the checkpoint",
        "try again, or use --new-pid-namespace",
        r"Pid (?P<pid>\d+) do not match expected (?!1\b)\d+",
        "criu/cr-restore.c",
        by_criu=f"try again, or {_IN_NEW_NAMESPACE}",
    ),
    Cause(
        "pid-remembered",
        "the first process of a new PID namespace believes that it is process {pid}: an old C library (glibc before "
        "2.25) keeps the PID of CRIU",
        "run CRIU on a system with a newer C library, or one that is statically linked with it",
        r"Pid (?P<pid>\d+) do not match expected 1\b",
        "criu/cr-restore.c",
        sure=False,
    ),
    Cause(
        "first-pid",
        "the tree does not begin with process 1, and so cannot begin a PID namespace",
        "restore it with its own PIDs, or use crckpt restore --new-pid-namespace",
        "First PID in a PID namespace needs to be",
        "criu/cr-restore.c",
        by_criu="restore it with its own PIDs, outside of a new PID namespace",
    ),
    Cause(
        "session-taken",
        "the session ID or process group ID of the tree is in use",
        "end those processes, or use --new-pid-namespace",
        r"Current (?:sid|gid) \d+ intersects with"
        r"|BUG at criu/pstree\.c",
        "criu/pstree.c",
        by_criu=f"end those processes, or {_IN_NEW_NAMESPACE}",
    ),
    Cause(
        "session-again",
        "a process cannot get its old session or process group",
        "end the process that uses that ID (ps -e -o pid,pgid,sid,comm), or use --new-pid-namespace",
        r"Can't restore (?:sid|pgid) \(|Requested sid \d+ doesn't match inherited",
        "criu/cr-restore.c",
        by_criu=f"end the process that uses that ID (ps -e -o pid,pgid,sid,comm), or {_IN_NEW_NAMESPACE}",
    ),
    Cause(
        "cpu",
        "this CPU lacks {features|something that the checkpoint's had}",
        "restore it on a machine like the one where it was made",
        "CPU (?:instruction )?capabilities do not match|FPU feature required by image"
        "|xsave (?:max )?size mismatch|FPU xsave area present|CPU xfeatures has unsupported bits"
        "|missing support fxsave|Image carries unknown vendor"
        r"|CPU capabilites do not match|Size of features in image mismatch|Image carries (?:\d+ words"
        r"|unknown capability)|Corruption in (?:FPU|\S+ area)|Unknown cpu vendor",
        "criu/arch/x86/cpu.c",
    ),
    Cause(
        "vdso",
        "this CRIU is too old for the running kernel",
        "crckpt install-criu",
        "Unexpected rt vDSO area bounds|Can't find vDSO/VVAR bounds"
        "|VVAR and VVAR_VCLOCK entries are not subsequent|Got second (?:vDSO|VVAR) entry"
        "|Kdat sizes of vdso/vvar differ|vdso: (?:ELF header|Failed to (?:fill|parse)|Compat|Helper for|Can't find rt)"
        "|Compat(?:ible)? vdso(?:'s size is bigger| helper)|Failed to mmap compatible vdso",
        "criu/vdso.c",
    ),
    Cause(
        "vdso-missing",
        "this kernel gives programs no vDSO, but the tree had one",
        "boot without vdso=0 and vdso32=0",
        "vDSO isn't provided by kernel, but exists in images|Task had vdso, restorer doesn't"
        "|Compatible mode without vdso map support",
        "criu/pie/parasite-vdso.c",
    ),
    Cause(
        "vdso-other",
        "the vDSO of this kernel cannot replace that of the checkpoint",
        "restore on the kernel of the checkpoint: crckpt show REF names it",
        "Failed to proxify dumpee contents|Unable to find suitable vDSO|Failed to map vdso"
        "|Can't find vDSO area in image",
        "criu/pie/parasite-vdso.c",
        by_criu="restore on the kernel of the checkpoint: the log of the dump names it",
    ),
)
