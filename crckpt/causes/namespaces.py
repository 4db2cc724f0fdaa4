"""Namespaces; those of mounts and network are in `mounts` and `network`. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

NAMESPACES = (
    Cause(
        "nested-namespace",
        "process {pid} has its own {kind} namespace inside the tree",
        "checkpoint only the program inside that namespace",
        r"Can't dump nested (?P<kind>(?!pid\b)\w+) namespace for (?P<pid>\d+)",
        "criu/namespaces.c",
    ),
    Cause(
        "nested-pid-namespace",
        "process {pid} has its own PID namespace inside the tree",
        "start it without one (unshare --pid); if it is a container, checkpoint it with its container engine",
        r"Can't dump nested pid namespace for (?P<pid>\d+)",
        "criu/namespaces.c",
    ),
    Cause(
        "nested-unmade",
        "{process|a process of the tree} has its own mount or network namespace, which a restore does not bring back",
        "start it without one, or checkpoint only the program inside that namespace",
        r"Can't restore sub-task in NS",
        "criu/pstree.c",
    ),
    Cause(
        "no-namespace-init",
        "the tree is in a PID namespace whose first process is not in the tree",
        "checkpoint the first process of that namespace: lsns --type pid",
        "Can't dump a pid namespace without the process init",
        "criu/namespaces.c",
    ),
    Cause(
        "session-outside",
        "the session leader of process {pid|(not named)} is outside its PID namespace",
        "start the program in its own session: setsid PROGRAM; or restore it without --new-pid-namespace",
        r"A session leader of (?:zombie process )?(?P<pid>\d+)\(\d+\) is outside of its pid namespace"
        r"|Failed to write -1 to \S*ns_last_pid",
        "criu/cr-dump.c",
        by_criu="start the program in its own session: setsid PROGRAM",
    ),
    Cause(
        "foreign-user-namespace",
        "namespaces of the tree belong to another user namespace than the tree's",
        "start the program with all its namespaces created together: unshare --user --pid --net PROGRAM",
        "One or more namespaces doesn't belong to the target user namespace|Unable to convert uid or gid",
        "criu/namespaces.c",
    ),
    Cause(
        "proc-mount",
        "CRIU cannot mount /proc in the user or PID namespace of the tree",
        "run the program in its own mount namespace too: unshare --user --mount --pid --fork",
        "Unable to (?:open|mount) the proc file system|Can't mount proc",
        "criu/cr-restore.c",
        sure=False,
    ),
    Cause(
        "namespace-outside",
        "the tree has open a namespace ({inode}) that none of its processes is in",
        "close it in the program: lsof -p PID",
        r"No NS ID with kid (?P<inode>\d+)",
        "criu/namespaces.c",
    ),
    Cause(
        "namespace-mounted",
        "fd {fd} of PID {pid} is the namespace that is mounted at {path}, which CRIU takes for a file: it cannot open "
        "it again",
        "close it in the program, or open it in /proc/PID/ns of a process of the tree",
    ),
    Cause(
        "id-map",
        "the user and group IDs of a user namespace cannot be set",
        "restore as root, and check the ranges: cat /etc/subuid /etc/subgid",
        "Unable to write into [ug]id_map",
        "criu/namespaces.c",
    ),
    Cause(
        "join-namespace",
        "a namespace given by --join-ns does not exist",
        "list them: lsns",
        "Can't access join-ns file|Invalid join_ns pid|Failed to setns when join-ns|Join namespaces failed",
        "criu/namespaces.c",
    ),
    Cause(
        "new-pids-needed",
        "the tree had its own PID namespace, and needs a new one",
        "crckpt restore REF --new-pid-namespace",
        "This process tree can only be restored in a new pid namespace",
        "criu/cr-restore.c",
        by_criu="unshare --pid --fork --mount-proc criu restore",
    ),
    Cause(
        "no-init-in-image",
        "the images contain a PID namespace without its first process",
        "pass the namespace to restore into, with criu: --inherit-fd fd[NUMBER]:pidns, as named by "
        "--external at the dump",
        "Can't restore pid namespace without the process init",
        "criu/cr-restore.c",
    ),
    Cause(
        "pidns-outside",
        "the images need an external PID namespace, {key}, which was not passed",
        "with criu: --inherit-fd fd[NUMBER]:{key}",
        "Unable to find an external pidns: (?P<key>.+)",
        "criu/cr-restore.c",
    ),
    Cause(
        "pidns-empty",
        "a tree cannot be restored into a PID namespace that has no process",
        "start one in it first: unshare --pid --fork sleep infinity",
        "Unable to restore into an empty PID namespace|Unable to enter existing PID namespace",
        "criu/cr-restore.c",
    ),
    Cause(
        "sysctl-read-only",
        "/proc/sys is read-only here, and CRIU sets {name|kernel/hostname} there for a namespace of the tree",
        "make it writable: mount -o remount,rw /proc/sys; or restore it with --new-pid-namespace",
        r"Can't open sysctl (?P<name>[^\s:]{1,200}): Read-only file system",
        "criu/sysctl.c",
        by_criu="make it writable: mount -o remount,rw /proc/sys",
    ),
    Cause(
        "ipc-id",
        "a System V IPC object cannot get its old ID",
        "restore into a new IPC namespace (unshare --ipc), on a kernel with CONFIG_CHECKPOINT_RESTORE",
        "Failed to set desired IPC (?:sem|msg|shm) ID|Failed to restore (?:sem|msg|shm) id"
        "|Failed to create (?:sem|msg|shm) set",
        "criu/ipc_ns.c",
    ),
    Cause(
        "clocks",
        "the clocks of the tree cannot be set (time namespace)",
        "restore as root, on a kernel with time namespaces (5.6, CONFIG_TIME_NS)",
        "Unable to set a (?:monotonic|boottime) clock offset|Time namespaces are not supported",
        "criu/timens.c",
    ),
    Cause(
        "container",
        "process {pid} ({comm}) is the init of a container (its own PID namespace)",
        "checkpoint it with its container engine (podman container checkpoint); if there is none, start the program "
        "without its own PID namespace (unshare --pid)",
    ),
    Cause(
        "other-user-namespace",
        "process {pid} ({comm}) runs in another user namespace than crckpt, and a restore cannot bring that back",
        "start it without its own user namespace (unshare --user, PrivateUsers=), or checkpoint it with its container "
        "engine",
    ),
    Cause(
        "namespace-owner",
        "the {kind} namespace of process {pid} ({comm}) belongs to another user namespace than crckpt's: its owner "
        "controls what CRIU finds there",
        "start the program without that user namespace, or checkpoint it with its container engine",
    ),
    Cause(
        "user-namespace-recorded",
        "process {pid} ({comm}) had its own user namespace at the dump, and crckpt cannot bring it back",
        "restore it with the program that made the dump, for example its container engine",
    ),
    Cause(
        "cannot-enter",
        "process {pid} has its own mounts, and CRIU cannot run in them safely: {why}",
        "install a CRIU that loads crckpt's preload library: crckpt install-criu; or start the program without "
        "its own mounts",
    ),
    Cause(
        "mount-namespace",
        "process {pid} ({comm}) has its own mount namespace, which a restore cannot bring back here",
        "start it without one (systemd: PrivateTmp=no, ProtectSystem=no ...), or use its container engine",
    ),
)
