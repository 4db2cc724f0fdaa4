"""Exhausted resources, in any part of CRIU. They are matched before the failures that they cause. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

# The kernel gives the same answers for some of its limits: see watch-limit and new-namespace.
_NO_LIMIT = "^(?!.*(?:Can't create inotify|Can't add watch|Unable to create a new|Can't unshare|cg: Can't move))"

EXHAUSTED = (
    Cause(
        "no-space",
        "there is no space left",
        "free space, or use --store on a larger disk",
        f"{_NO_LIMIT}.*No space left on device",
        "errno ENOSPC",
        by_criu="free space, or let CRIU write to a larger disk: --images-dir DIR",
    ),
    Cause(
        "quota",
        "the disk quota is used up",
        "free space, or use --store on another disk",
        "(?:Disk q|Q)uota exceeded",
        "errno EDQUOT",
        by_criu="free space, or let CRIU write to another disk: --images-dir DIR",
    ),
    Cause(
        "open-files",
        "too many files are open",
        "raise the limit: ulimit -n 1048576 (for all: sysctl -w fs.file-max=4000000)",
        f"{_NO_LIMIT}.*(?:Too many open files|No file descriptors available)|Can't chose service_fd_base",
        "errno EMFILE, ENFILE",
    ),
    Cause(
        "out-of-memory",
        "there is not enough memory",
        "free memory, or raise the memory limit of the cgroup",
        r"Cannot allocate memory|: Out of memory$|Can't allocate \d+ bytes"
        # CRIU's code in the program writes numbers: -12 (ENOMEM), which is 0xff...f4 as an address.
        r"|/pie/\w{1,20}\.c:\d{1,6}\): .*(?:\W-12|0xf{15}4)\)?$",
        "errno ENOMEM",
    ),
)
