"""Mounts and mount namespaces. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

MOUNTS = (
    Cause(
        "root-needed",
        "the images contain a mount namespace, but no root directory was given for it",
        "with criu: --root DIRECTORY, which is a mount point",
        r"The --root option is required to restore a mount namespace|mnt: BUG at criu/mount\.c:48\b",
        "criu/mount.c",
    ),
    Cause(
        "not-entered",
        "CRIU did not enter the mounts of the tree: {why}",
        "try again; if the program is changing its namespaces, wait until it has finished",
        r"crckpt's preload: the mounts of the tree cannot be entered: (?P<why>.+)",
        "crckpt/tracking/preload/enter.c",
    ),
    Cause(
        "mount-sharing",
        "a mount propagates to a mount outside the tree",
        "run mount --make-rprivate on it; or with criu: --external mnt[]:sm",
        r"has unreachable sharing|External slavery sharing group"
        "|have different set of mounts|Unable to handle mounts under",
        "criu/mount.c",
    ),
    Cause(
        "mount-kind",
        "the file system at {path} is of a kind that CRIU cannot save",
        "unmount it, or with criu: --external mnt[PATH]:KEY",
        r"FS mnt \.?(?P<path>.+) dev \w+ root .+ unsupported id",
        "criu/mount.c",
    ),
    Cause(
        "mount-bound",
        "{path} is a bind mount of a path that the tree does not see",
        "unmount it, or with criu: --external mnt[PATH]:KEY",
        r"\b\d+:\.?(?P<path>\S+) doesn't have a proper (?:root mount|point for)",
        "criu/mount.c",
    ),
    Cause(
        "mount-outside",
        "{path} is mounted from outside the tree",
        "with criu: --external mnt[PATH]:KEY, or --external mnt[] for all",
        r"Mount \d+:\.?(?P<path>\S+) is autodetected external mount",
        "criu/mount.c",
    ),
    Cause(
        "mount-unnamed",
        "no source was given for the mount at {path}",
        "with criu: --external mnt[KEY]:SOURCE, with the key of the dump",
        r"No mapping for (?:\d+:)?\.?(?P<path>\S+) mountpoint",
        "criu/mount.c",
    ),
    Cause(
        "mount-twice",
        "two mounts are at the same mount point",
        "unmount the upper one before the dump: findmnt",
        "has two children with same mountpoint",
        "criu/mount.c",
    ),
    Cause(
        "mount-refused",
        "a file system cannot be mounted again",
        "restore as root; check that the module of the file system is loaded and its mount point exists",
        r"Can't mount at |A few mount points can't be mounted|Unable to mount .+ \(id=\d+\)"
        "|Can't restore ext mount|Can't (?:bind-mount|re-mount) at (?!.{1,300}: No such file)|Can't bind remount "
        r"|Unable to (?:re)?mount (?!the )|Can't remount |pivot_root\("
        r"|Unable to apply (?:root )?mount fl|Unable to make \S+ (?:private|slave|shared)|Can't mount binfmt"
        r"|New root and old root are the same|Can't re-create deleted|Failed to (?:restore \d+:\S+ mount|set mount)"
        r"|Can't restore mntns",
        "criu/mount.c",
    ),
    Cause(
        "mount-locked",
        "the kernel does not let CRIU unmount {path}: mounts that came from another user namespace, or that WSL "
        "made, are locked",
        "restore in a new mount namespace with the private root of a container; with criu: --root DIRECTORY",
        # umount(2) answers EINVAL for a locked mount (mount_namespaces(7)).
        r"Can't umount at \.?(?P<path>\S{1,300}): (?:Invalid argument|Operation not permitted)",
        "criu/mount.c",
        sure=False,
    ),
    Cause(
        "mount-engine",
        "the kernel refuses the way in which CRIU (since 3.17) restores a mount of the tree",
        "check that the source of the mount exists; with criu: --mntns-compat-mode (for an engine: echo "
        "mntns-compat-mode >> /etc/criu/runc.conf)",
        r"Failed to (?:move_mount|open_tree|cross-mntns)",
        "criu/mount-v2.c",
        sure=False,
    ),
    Cause(
        "mount-sharing-again",
        "CRIU cannot make two mounts of the tree pass on mounts to each other again; mostly one of them was mounted"
        " from elsewhere than at the dump",
        "with criu: --mntns-compat-mode (for an engine: echo mntns-compat-mode >> /etc/criu/runc.conf), or give both"
        " the same --external source",
        r"Failed to copy sharing|Can't copy sharing",
        "criu/mount-v2.c",
    ),
    Cause(
        "mount-point",
        "the mount point {path|(see the log)} does not exist",
        "create it: mkdir -p {path|DIRECTORY}",
        r"(?:Can't stat mountpoint |Can't bind-mount at (?=\S{1,300}: No such file)"
        r"(?:\S{0,40}/\.criu\.mntns\.[^/\s]{1,20})?)(?P<path>[^:]+)|Unable to (?:mkdir|create) mountpoint ",
        "criu/mount-v2.c",
    ),
    Cause(
        "mount-hidden",
        "a file of the tree is on a mount that is read-only or hidden by another",
        "make it writable and unhide it before the dump: mount -o remount,rw DIRECTORY",
        r"is overmounted so paths are invisible|has readonly sb|Failed to remount \d+:.+ writable",
        "criu/mount.c",
    ),
    Cause(
        "other-root",
        "the program has changed its root inside its mount namespace: {path}",
        "start it without chroot, in a mount namespace with that root",
        "The root task has another root than mntns: (?P<path>.+)",
        "criu/mount.c",
    ),
    Cause(
        "nested-mounts",
        "processes of the tree have mount namespaces with different roots",
        "run them with the same root directory, or dump them one by one",
        "Nested mount namespaces|Nested mount .+ root insertion",
        "criu/mount.c",
    ),
    Cause(
        "mount-format",
        "CRIU cannot parse a line of the mount table: {line|its rest is in the next line of the log}",
        "a newer CRIU may be able to: crckpt install-criu",
        r"Bad format in \d+ mountinfo(?:: '(?P<line>.*)'|: '|$)|Failed to parse FS specific data on "
        r"|Can't parse \d+'s mountinfo|Error parsing mount options|Unknown option \[",
        "criu/proc_parse.c",
    ),
    Cause(
        "parasite-mount",
        "a mount of the tree cannot be opened",
        "run crckpt as root of the host, where the mount can be reached",
        r"Can't open mount 0x|Can't bind-mount \d+:.+ to |Unable to open .+\(\d+\): "
        "|Resolving over (?:in|un)valid device",
        "criu/mount.c",
    ),
)
