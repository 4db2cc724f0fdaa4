"""Control groups. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

CGROUPS = (
    Cause(
        "cgroup",
        "cgroup directory {path|of the tree} does not exist",
        "create it",
        "Cgroup dir (?P<path>.+) doesn't exist|bad cgroup path: [^:]+: No such",
        "criu/cgroup.c",
    ),
    Cause(
        "cgroup-there",
        "a cgroup of the tree exists already, but CRIU must create it",
        "remove it, or with criu: --manage-cgroups=soft",
        "Abort restore of existing cgroups",
        "criu/cgroup.c",
    ),
    Cause(
        "cgroup-make",
        "cgroup {path} cannot be created",
        "restore as root, where /sys/fs/cgroup is writable",
        r"Can't make cgroup dir (?P<path>.+): |\tCan't make controller dir ",
        "criu/cgroup.c",
    ),
    Cause(
        "cgroup-move",
        "a process cannot be moved into its cgroup",
        "restore as root; processes may only be in cgroups without children: systemd-run --scope -p Delegate=yes",
        r"Can't move (?:\S+ )?into \S+ \((?!.*No space left)|Can't move thread \d+ into|Failed accessing cgroup dir",
        "criu/cgroup.c",
    ),
    Cause(
        "cpuset-empty",
        "the cpuset cgroup of the tree has no CPUs or no memory nodes",
        "set cpuset.cpus and cpuset.mems of that cgroup and of those above it; with criu: --manage-cgroups=ignore",
        # The kernel's answer for such a group (kernel/cgroup/cpuset.c, cpuset_can_attach_check).
        r"Can't move (?:\S+ )?into \S+ \(.*No space left",
        "criu/cgroup.c",
    ),
    Cause(
        "cgroup-mount",
        "CRIU cannot mount the hierarchy of a cgroup controller",
        "check that this host has the controller: cat /proc/self/cgroup; with criu: --manage-cgroups=ignore",
        "Unable to (?:open|configure|create|mount) the cgroup|Can't mount controller dir|cg: couldn't mount"
        "|failed preparing cgns|couldn't set cgns prefix",
        "criu/cgroup.c",
    ),
    Cause(
        "cgroup-value",
        "{path|a file of a cgroup} does not accept {value|its value}",
        "set it by hand, or with criu: --manage-cgroups=soft",
        r"Failed writing (?P<value>.*) to (?P<path>\S+?)(?:: |$)|cg: Failed writing (?!.* to )"
        r"|Failed closing \S+: |Restoring \S+ (?:cpuset|special) prop\S* failed",
        "criu/cgroup.c",
    ),
    Cause(
        "cgroup-root",
        "the cgroups of the tree are not nested as CRIU expects",
        "crckpt leaves them out: use it for the dump and the restore",
        r"invalid cgroup configuration|cg \S+ shorter than path prefix|CG paths mismatch",
        "criu/proc_parse.c",
        by_criu="--manage-cgroups=ignore on dump and restore",
    ),
    Cause(
        "cgroup-properties",
        "the file of cgroup properties is invalid",
        "correct the file of --cgroup-props-file",
        "Expecting controller name|Expected (?:strategy in|property name for) controller|Expected ':$"
        r"|Expected '\['|Unknown strategy .+ in controller's",
        "criu/cgroup-props.c",
    ),
    Cause(
        "group-frozen",
        "the control group {path}, to which process {pid} must go back, is frozen: a restore would wait for ever",
        "let it go on: write 0 to its cgroup.freeze, or to that of a group above it; then try again",
    ),
    Cause(
        "group-rules-lost",
        "process {pid} ({comm}) was in the control group {path}, but crckpt runs in a group without its rules on "
        "{what}",
        "run crckpt restore in a group with these rules; or restore with less protection: --allow-weaker",
    ),
    Cause(
        "group-limits-lost",
        "process {pid} ({comm}) was in the control group {path}, but crckpt runs in a group without its limits of "
        "{what}",
        "to keep them, run crckpt restore in a group with these limits: systemd-run --scope -p MemoryMax=SIZE "
        "crckpt restore REF",
    ),
)
