"""Errors of container engines and cuda-checkpoint before or without CRIU. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

STARTS = (
    Cause(
        "engine-no-criu",
        "the container engine does not find CRIU",
        "install it where the engine looks for it: crckpt install-criu; then test it: criu check",
        r'exec: "?criu"?: executable file not found|criu(?: binary)? (?:not found|isn\'t installed|is not installed)'
        r"|CRIU isn't installed|[Cc]ouldn't find (?:the )?criu|could not load .?libcriu|failed to find criu"
        r"|can(?:not|'t) find criu|criu: (?:command )?not found|exec\w{1,3}\(criu\) failed"
        r"|Unable to execute CRIU command",
        "runc, crun, LXD",
    ),
    Cause(
        "engine-old-criu",
        "CRIU is too old for the container engine",
        "crckpt install-criu",
        r"(?:CRIU|criu) version (?:\d+ )?must be|requires at least (?:CRIU|criu)|CRIU version (?:is )?too (?:old|low)"
        r"|minimum (?:required )?CRIU version|criu \S{0,20} ?or (?:newer|later) is required|CRIU is missing features",
        "runc, podman, LXC",
    ),
    Cause(
        "engine-criu-version",
        "the container engine cannot read the version of this CRIU",
        "use a release of CRIU, not a build from git: crckpt install-criu",
        r"[Uu]nable to parse the CRIU version",
        "docker 1.x, libcontainer",
    ),
    Cause(
        "engine-no-checkpoint",
        "the container engine or its runtime is not set up for checkpoints",
        "enable them (docker: experimental), or use a runtime with them (runc; a crun built with CRIU)",
        r"runtime (?:\S{1,100} )?does not support (?:checkpoint/|pod )restore"
        r"|checkpoint/restore support (?:is )?not available"
        r"|checkpoint\S{0,8} is only supported on a Docker daemon with experimental"
        r"|checkpoint(?:/| and |-)?restore (?:is )?not supported|does not support checkpoint"
        r"|[Cc]heckpoint\w* .{0,40}not implemented"
        r"|(?:checkpoint|restore)(?:/restore)? (?:is )?not (?:supported|implemented)"
        r" (?:by|for|in|on|with) (?:this |the )?(?:runtime|rootless|containers?|platform|driver)",
        "podman, docker, CRI-O",
    ),
    Cause(
        "engine-terminal",
        "the container has a terminal, which the runtime cannot save",
        "start it without one (no --tty); for LXC: lxc.console.path = none, lxc.tty.max = 0",
        r"lxc\.(?:console(?:\.path)?|tty(?:\.max)?) must be|cannot (?:checkpoint|restore) \S{0,40} ?with (?:an? )?"
        r"(?:attached |external )?(?:terminal|tty|console)|[Cc]heckpoint\S* (?:of )?containers? with (?:a )?(?:tty|"
        r"console|terminal)",
        "LXC, runc",
    ),
    Cause(
        "engine-checkpoint-there",
        "the container engine already has a checkpoint of that name",
        "remove it (docker checkpoint rm), or use another name",
        r"checkpoint with name .{1,200} already exists|/checkpoints/[^/\s]{1,200}: file exists",
        "docker",
    ),
    Cause(
        "engine-directory",
        "docker no longer restores from --checkpoint-dir",
        "leave --checkpoint-dir out, and put the checkpoint under /var/lib/docker/containers/ID/checkpoints",
        r"custom checkpointdir is not supported|shim error: open \S{1,300}/config\.json: no such file",
        "docker",
    ),
    Cause(
        "engine-broken",
        "this version of docker cannot start a container from a checkpoint",
        "use another (docker 17.12 to 19.03 and 20.10 to 25.0.3 have bugs there), or podman",
        r"failed to retrieve OCI runtime container pid|content (?:digest )?sha256:[0-9a-f]{10,64}: not found"
        r"|unexpected media type .{0,100} for sha256|failed to upload checkpoint"
        r"|bind-mount /proc/\d{1,10}/ns/net .{0,300}no such file",
        "docker",
        sure=False,
    ),
    Cause(
        "engine-criu-died",
        "CRIU itself crashed or was killed while the container engine waited for it",
        "check whether memory ran out or CRIU crashed: journalctl -k -n 50; then use another CRIU: crckpt install-criu",
        r"(?:read|write) unixpacket @->@: |(?:dump|restore) signaled with \d",
        "runc, LXC",
    ),
    Cause(
        "engine-hook",
        "a hook of the container engine failed while the container was restored: {why|see the log}",
        "check what the hook does: the network of the container may exist already",
        r"(?:error running|running \w{1,20}) hook[^:]{0,40}: (?P<why>[^,\"\\\\]{1,200})",
        "runc",
        sure=False,
    ),
    Cause(
        "engine-rootless",
        "the container engine can make checkpoints only as root",
        "run it as root",
        r"[Cc]heckpoint(?:ing)?(?:/restor\w+|ing|ed)? .{0,40}requires root|must be root to (?:checkpoint|restore)"
        r"|only root can (?:checkpoint|restore)|cannot (?:checkpoint|restore) (?:a )?rootless"
        r"|(?:runc )?restore requires root",
        "podman, LXC",
    ),
    Cause(
        "client-interrupted",
        "a signal interrupted the program that calls CRIU (by libcriu) while it waited for the answer",
        "block signals like SIGCHLD and SIGALRM around criu_dump() and criu_restore(), or install their handlers with"
        " SA_RESTART",
        r"Can't (?:read request|recv request|receive response|read swrk pid): Interrupted system call",
        "libcriu",
    ),
    Cause(
        "service-absent",
        "CRIU's service does not answer the program that calls it",
        "start it (criu service) with the address that the program uses, and check who may write to its socket",
        r"Can't connect to socket: |Unable to connect to (?:the )?CRIU service",
        "libcriu",
    ),
    Cause(
        "request-options",
        "CRIU refuses the options of its caller (EBADRQC), or cannot make its log or open its directories",
        "use a log-file without directories, and existing images and work directories; check that CRIU is not older"
        " than its caller",
        # EBADRQC (criu/cr-service.c:830).
        r"(?:criu failed: type \S{1,20} errno |RPC request failed with message: .{0,300}error:| err:)56\b",
        "criu/cr-service.c",
        sure=False,
    ),
    Cause(
        "request-pid",
        "a PID of the checkpoint is taken (EEXIST)",
        "end its owner, wait for it, or restore in a new PID namespace",
        # EEXIST of the fork (criu/cr-restore.c, fork_with_pid).
        r"(?:criu failed: type \S{1,20} errno |RPC request failed with message: .{0,300}error:| err:)17\b",
        "criu/cr-service.c",
        sure=False,
    ),
    Cause(
        "cuda-permission",
        "cuda-checkpoint has no permission for the process",
        "run it as root of the host, and keep the driver loaded: nvidia-smi -pm 1",
        r"process ID \d{1,10}: \"?operation not permitted",
        "cuda-checkpoint",
    ),
    Cause(
        "cuda-driver",
        "the NVIDIA driver is too old for cuda-checkpoint",
        "install driver 570 or newer (575 has fewer bugs); see the version: nvidia-smi",
        r"Insufficient driver|CUDA driver version is insufficient",
        "cuda-checkpoint",
    ),
    Cause(
        "cuda-checkpoint",
        "cuda-checkpoint fails: {why|it does not find the thread of CUDA in the process}",
        "check that the driver is 570 or newer (nvidia-smi) and that the PID is the program's; it may not support"
        " programs with NCCL, IPC memory, UVM or MIG",
        r"[Ee]rror (?:toggling|getting|locking|checkpointing|restoring|unlocking) .{0,60}process ID \d+: (?P<why>.+)"
        r"|Could not find restore thread",
        "cuda-checkpoint",
    ),
)

OUTER = (
    Cause(
        "criu-crashed",
        "CRIU itself, or a program that it restored, crashed",
        "see which: journalctl -k -n 50; then use another CRIU: crckpt install-criu",
        r"Segmentation fault \(core dumped\)|criu: Segmentation fault|\bcriu\[\d{1,10}\]: segfault",
        "the shell, the kernel",
        sure=False,
    ),
    Cause(
        "engine-log",
        "the container engine says that CRIU failed, but only CRIU's log says why",
        "read it: crckpt explain {path|LOG} (the engine prints its path)",
        r"criu failed: type \S{1,20} errno \d{1,5}(?:.{0,20}log file: (?P<path>[^\s\"\\]{1,400}[^\s\"\\:,]))?"
        r"|CRIU (?:checkpointing|restoring) failed:? -?\d|criu failed with -?\d"
        r"|criu\.c: ?\w{1,20}: ?\d{1,5} (?:dump|restore) failed"
        # libcriu's EBADE (52): CRIU answered that it failed (lib/c/criu.h:155).
        r"|criu swrk failed|operation failed \(msg:|Could not (?:dump|restore) the JVM process\w{0,3}, err=-52\b"
        r"|CWWKE096[1-3]E|criu_(?:dump|restore)\(?\)? return\w{0,3} (?:-52|-?EBADE)"
        r"|(?:Checkpointing|Restoring) \S{1,100} failed\.",
        "runc, crun, LXC",
    ),
    Cause(
        "java-checkpoint",
        "CRIU, started by Java, failed; usually it lacks privileges",
        "read its log (dump4.log where -XX:CRaCCheckpointTo leads): crckpt explain {path|LOG}; make CRIU root's"
        " (chown root:root $JAVA_HOME/lib/criu; chmod u+s $JAVA_HOME/lib/criu), in a container use --privileged",
        r"CRIU failed with exit code \d{1,3} - check (?P<path>\S{1,300})"
        r"|invalid info for restore provided|Native checkpoint failed",
        "CRaC",
        sure=False,
    ),
)
"""It counts only if there is no other message."""
