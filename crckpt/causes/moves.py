"""Moves to another host, before anything is touched. Pure.

A move finds most causes by the checks of a restore, whose remedies speak to a user of the restoring host. `REWORDED`
has the words for a user of the host that the tree is to leave.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from crckpt.causes.cause import Cause, Finding

_COPY: Final = "copy it there, with its time: rsync -t"
_SHARE: Final = "keep it on storage that both hosts mount"

MOVES = (
    Cause("same-host", "it is this host, where the program runs", "name the host to which the program is to move"),
    Cause(
        "same-store",
        "it uses the store of this host, {directory}: a move needs two",
        "use another store there: --remote-store DIR",
    ),
    Cause(
        "other-version",
        "it has crckpt {theirs}, and this host has crckpt {ours}",
        "install the same version on both hosts",
    ),
    Cause("file-differs", "{path} is not the same file there: {why} ({use})", f"{_COPY}; or {_SHARE}"),
    Cause(
        "file-in-use",
        "{path} is open for writing ({use}): the copy there has the same {same} now; if the program writes to it, "
        "crckpt aborts the move",
        _SHARE,
    ),
    Cause(
        "file-mapped",
        "the program writes to {path} through a map, and it is too large to be compared while the program is frozen "
        "({use})",
        _SHARE,
    ),
    Cause(
        "lock-everywhere",
        "{path} is locked, on a file system whose locks hold on all hosts: the program there would wait for its own "
        "lock here ({use})",
        "mount it so that locks hold on one host only (NFS 3: local_lock=all); or release the lock in the program",
    ),
    Cause("files-in-use", "{count} more files are open for writing", _SHARE),
    Cause(
        "file-size-only",
        "crckpt compared only size and time of {path}, because {why} ({use})",
        "compare the content on both hosts: sha256sum {path}",
    ),
    Cause(
        "file-unmounted",
        "crckpt did not look for {path}: its file system is an automount that is not mounted now ({use})",
        "mount it there: ls {path}",
    ),
    Cause(
        "file-silent",
        "the file system of {path} does not answer ({use})",
        "find it there: findmnt -T {path}; then mount it again",
    ),
    Cause("file-refused", "crckpt cannot look for {path}: {why} ({use})", "run crckpt there as root"),
    Cause("files-unasked", "crckpt did not look for {count} more files, because of that file system", ""),
    Cause(
        "owner-differs",
        "{path} belongs to {there} there, and to {here} here ({use})",
        "chown it there, if the program depends on it",
    ),
    Cause(
        "removed-name",
        "{path} was removed but has other names ({use}): a move cannot take the file along",
        "close it in the program, or give it its name again",
    ),
    Cause(
        "file-unsendable",
        "{path} cannot be sent: {why}",
        "copy it there: rsync -t",
    ),
    Cause(
        "user-missing",
        "{kind} {number}, here {name}, does not exist there",
        "create it there, if the program needs its name",
    ),
    Cause(
        "user-differs",
        "{kind} {number} is {here} here and {there} there: after the move files of the program belong to {there}",
        "give both hosts the same users",
    ),
    Cause(
        "rights-of-another",
        "{kind} {number} is {here} here and {there} there: the program would have the rights of {there}",
        "give both hosts the same users; or check what {there} may do there, then add --allow-weaker",
    ),
    Cause(
        "file-of-another",
        "{there} could replace {path} there, and so control the program ({use})",
        "remove it there, then send it: --send-files; or check it, then add --allow-weaker",
    ),
    Cause(
        "clock-differs",
        "its clock is {seconds} s {direction} the clock of this host: the program sees the time jump",
        "synchronize both clocks: timedatectl set-ntp true",
    ),
    Cause(
        "move-space",
        "the tree has {needed} of memory, and the store there, {directory}, has only {free} free: it may not fit, even "
        "compressed",
        "free space there (crckpt rm, crckpt gc), or use another store there: --remote-store DIR",
    ),
    Cause(
        "move-full",
        "the move needs at least {needed} in the store there, {directory}, and only {free} are free",
        "free space there (crckpt rm, crckpt gc), or use another store there: --remote-store DIR",
    ),
    Cause("no-criu", "no CRIU works there: {why}", "install one there: crckpt install-criu"),
    Cause(
        "connection-stays",
        "{connection} connects the tree to a program on this host, which does not move along",
        "close the connection: --tcp close; or move both programs together",
    ),
    Cause(
        "job-there",
        "the store there has a job {job} of another program, {program}",
        "choose another name for the job, or another store there: --remote-store DIR",
    ),
    Cause(
        "session-kept",
        "the program there is in the control group of the ssh session, {group}, and systemd may end it together with "
        "that session",
        "keep it there: KillUserProcesses=no in /etc/systemd/logind.conf, then systemctl restart systemd-logind",
    ),
    Cause(
        "move-in-progress",
        "an earlier move of the job {job} is unfinished there ({state})",
        "wait until it ends; or finish it: crckpt migrate --resume {move}",
    ),
)

_MACHINE: Final = "move it to a machine like this one"
_WEAKER: Final = "move it with less protection: --allow-weaker"

REWORDED: Final = {
    "address-missing": Cause(
        "", "", "move the address with the program: --move-ip {address|ADDRESS/LENGTH@DEVICE}; or {remedy}"
    ),
    "cgroup-namespace-lost": Cause("", "", _WEAKER),
    "clocks-jump": Cause("", "this kernel has no time namespaces: the monotonic clocks of the tree jump", "{remedy}"),
    "cpu": Cause("", "", _MACHINE),
    "console-of-another": Cause("", "", "allow it: --allow-weaker"),
    "cpus-missing": Cause("", "", "choose other CPUs here: taskset -p"),
    "group-limits-lost": Cause(
        "", "", "start crckpt there in a group with these limits, by a script that --remote-crckpt names"
    ),
    "group-rules-lost": Cause(
        "",
        "",
        "start crckpt there in a group with these rules; or move it with less protection: --allow-weaker",
    ),
    "images-arch": Cause("", "", _MACHINE),
    "keys-lost": Cause("", "", "make the program request its keys again"),
    "label-lost": Cause("", "", _WEAKER),
    "landlock-lost": Cause("", "", _WEAKER),
    "no-cpu-left": Cause("", "", "choose other CPUs here: taskset -p"),
    "no-tcp-repair": Cause("", "", "run crckpt there with CAP_NET_ADMIN; or close the connections: --tcp close"),
    "older-criu": Cause(
        "",
        "CRIU {theirs} there is older than CRIU {ours} here, and may lose parts that it does not know",
        "install a newer CRIU there: crckpt install-criu",
    ),
    "peer-lost": Cause("", "", _WEAKER),
    "pid-ours": Cause("", "", "run the command again: crckpt gets another PID there"),
    "pid-taken": Cause("", "", "end it there, or wait for it; or start the program again here: it gets other PIDs"),
    "pid-unreaped": Cause("", "", "end its parent there, which does not reap its children"),
    "protection-lost": Cause("", "", _WEAKER),
    "seccomp-again": Cause(
        "", "this kernel has no seccomp filters, but the tree has some", "use a kernel with CONFIG_SECCOMP_FILTER"
    ),
    "security-module": Cause(
        "",
        "the tree runs under a security module that this kernel does not have",
        "boot that host with it: security=apparmor, or selinux=1",
    ),
    "stopped-job": Cause(
        "",
        "a process of the tree is stopped, as by ^Z: after the move no shell could continue it, and the kernel would "
        "end it by SIGHUP",
        "continue it before the move: fg",
    ),
    "terminal": Cause(
        "",
        "the program was started from a terminal, and the terminal stays here",
        "move it onto a new terminal, which crckpt attach shows there: --tty new; if it only prints: --tty null",
    ),
    "tasks-limit": Cause("", "", "raise its pids.max"),
    "tcp-keys-lost": Cause("", "", _WEAKER),
    "terminal-of-another": Cause("", "", "move it onto a new terminal: --tty new"),
    "unasked-lost": Cause("", "", _WEAKER),
}
"""By key, the words of a move; empty ones are those of the restore. `{remedy}` is the remedy of a restore."""


_CLOSE: Final = "close it in the program before the move"
_OF_DUMP: Final = {
    "exit-signal": "let the program end its children by SIGCHLD",
    "kernel-file-open": _CLOSE,
    "memory": "end another program, or put the images on a disk: staging in the configuration file",
    "packet-ring": _CLOSE,
    "peer-of-another": _CLOSE,
    "socket-loses": "try again when the program has read it",
    "tcp-keys": _CLOSE,
    "unix-moved": _CLOSE,
    "untested-kind": _CLOSE,
}
"""Remedies of a move for findings of the dump, whose remedies have options that a move lacks."""

OF_FILES: Final = frozenset(
    {
        "data-written",
        "directory-missing",
        "file-being-written",
        "file-grown",
        "file-kind",
        "file-linked",
        "file-missing",
        "file-mode",
        "file-other",
        "file-replaced",
        "file-rewound",
        "file-shrunk",
        "file-upgraded",
        "file-written",
        "link-missing",
        "log-appended",
        "log-grown",
        "log-kept",
        "log-missing",
        "log-rotated",
        "output-shrunk",
        "program-grown",
    }
)
"""Keys of findings of a restore's check of files, which a move has in other words."""

_OF_SOURCE: Final = ("--lazy", "--move-ip", "BindAddress")
"""Words of remedies that are typed or set on the source."""

_SOURCE_KEYS: Final = frozenset({"connection-stays", "removed-name", "stopped-job", "terminal"})
"""Keys of what the destination finds, but only the source has."""

_WORDED: Final = OF_FILES | {entry.key for entry in MOVES}


def reword_dump(finding: Finding) -> Finding:
    """Return a finding of the dump, on the source, in the words of a move."""
    what, detached, _ = finding.what.partition("it leads to the output of crckpt restore")
    what = what.replace("after a restore", "after the move") + ("it leads to /dev/null" if detached else "")
    return replace(finding, what=what, remedy=_OF_DUMP.get(finding.key, finding.remedy))


def reword(finding: Finding, host: str, **values: object) -> Finding:
    """Return a finding of the destination in the words of a move. `host` names the destination."""
    what, remedy = finding.what, finding.remedy
    is_of_source = finding.key in _WORDED or any(words in remedy for words in _OF_SOURCE)
    if remedy and not is_of_source:
        remedy = f"on {host}: {remedy}"
    if (words := REWORDED.get(finding.key)) is not None:
        filled = words.finding(remedy=remedy, **values)
        what, remedy = filled.what or what, filled.remedy
    if finding.key in _SOURCE_KEYS:
        return replace(finding, what=what, remedy=remedy)
    if finding.key not in _WORDED:
        # There, "this host" is that one.
        what = what.replace("this host", "it" if what.startswith("this host") else "that host")
    return replace(finding, what=f"{host}: {what}", remedy=remedy)
