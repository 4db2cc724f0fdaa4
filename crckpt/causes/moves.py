"""The words of a move to another host. Pure.

A move finds most causes by the checks of a restore, whose remedies speak to a user of the restoring host. `REWORDED`
has the words for a user of the host that the tree is to leave.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from crckpt.causes.catalogue import SECTIONS
from crckpt.causes.cause import Cause, Finding

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

_WORDED: Final = OF_FILES | {entry.key for entry in SECTIONS["moves"].causes}


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
