"""Messages of the kernel and of other programs. They are matched before CRIU's. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

OUTSIDE = (
    Cause(
        "gpu-timeout",
        # DEFAULT_TIMEOUT (criu/include/cr_options.h:88).
        "the GPU did not stop within CRIU's time limit for the freeze (10 seconds by default)",
        "raise it: criu --timeout SECONDS (for an engine: timeout SECONDS in /etc/criu/runc.conf); end what runs on "
        "the GPU first",
        r"Unable to read output of cuda-checkpoint: Interrupted system call",
        "plugins/cuda/cuda_plugin.c",
    ),
    Cause(
        "selinux-denied",
        "SELinux denied {what} to {comm}",
        "update container-selinux; or allow it: ausearch -m avc -ts recent | audit2allow -M criu; to try without:"
        " setenforce 0",
        r"avc:\s{1,4}denied\s{1,4}\{ (?P<what>[^}]{1,80}?) \}.{0,200}?comm=\"(?P<comm>[^\"]{1,64})\""
        # Logged, but allowed.
        r"(?!.{0,400}permissive=1)",
        "security/selinux",
    ),
    Cause(
        "apparmor-denied",
        "AppArmor denied {what} to a program of the profile {profile|(not named)}",
        "change that profile, or start the program without it (docker: --security-opt apparmor=unconfined)",
        r"apparmor=\"DENIED\" operation=\"(?P<what>[^\"]{1,64})\"(?:.{0,200}?profile=\"(?P<profile>[^\"]{1,200})\")?",
        "security/apparmor",
    ),
    Cause(
        "tar-option",
        "the tar of this host (busybox) lacks an option that CRIU needs to pack a tmpfs",
        "install GNU tar",
        r"tar: (?:unrecognized|unknown|invalid) option|BusyBox .{0,80}\btar\b",
        "criu/filesystems.c",
    ),
    Cause(
        "xtables-lock",
        "iptables cannot open its lock, /run/xtables.lock",
        "make /run writable where CRIU runs; install CRIU 3.9 or newer: crckpt install-criu",
        r"[Cc]an't open lock file \S{0,200}xtables\.lock",
        "iptables",
    ),
)
