"""Judge whether a checkpoint can be restored on this host, and what no longer matches the program's memory."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.causes.finding import separate
from crckpt.preflight.restore.descriptors import (
    OutsidePipe,
    judge_locks,
    judge_terminals,
    needs_terminal,
    outside_pipes,
    two_way_pipes,
)
from crckpt.preflight.restore.files import judge_files
from crckpt.preflight.restore.host import HostState, PlannedRestore, judge_requirements
from crckpt.preflight.restore.sockets import judge_sockets
from crckpt.preflight.restore.tasks import find_needed_ids, find_taken_ids, judge_tasks

UNCONDITIONAL = frozenset({"user-namespace-recorded", "vdso-changed"})
"""Keys of blockers that --no-preflight does not lift."""

_REWOUND: Final = "file-rewound"
# What is no warning prevents a restore.
_WARNINGS: Final = (
    *("file-written", "log-kept", "log-appended", _REWOUND),
    *("clocks-jump", "cpu-clocks", "parent-death"),
)
# The program itself may be running: --or-older must not start an older one next to it.
_IN_USE: Final = (
    *("job-runs", "pid-taken", "pid-ours", "pid-unreaped", "port-closing", "port-taken", "lock-taken"),
    *("file-being-written", "terminal-taken", "unix-taken", "netlink-taken"),
)


class FoundLink(NamedTuple):
    """A link of CRIU that is missing; another name of its file in the same directory, its inode and owner."""

    path: str
    name: str
    inode: int
    owner: int


class RestoreVerdict(Struct, frozen=True):
    """Whether a restore may begin: only without `blockers`.

    `two_way_pipes`: inodes of pipes with a descriptor both to read and to write (of /proc/PID/fd), which CRIU gives
    back only for reading unless it gets the pipe (criu/pipes.c, mark_pipe_master_cb). `links`: links of CRIU that are
    missing, and for each another name of the file in its directory.
    """

    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    outside_pipes: tuple[OutsidePipe, ...]
    needs_terminal: bool
    two_way_pipes: frozenset[int] = frozenset()
    links: tuple[FoundLink, ...] = ()

    @property
    def is_in_use(self) -> bool:
        """Whether another program has something that the tree needs, at this moment."""
        return any(finding.key in _IN_USE for finding in self.blockers)

    @property
    def rewinds(self) -> tuple[tuple[str, int], ...]:
        """The paths of the files that are cut back, each with the size in bytes that it had at the checkpoint."""
        cut = (found for found in self.warnings if found.key == _REWOUND)
        return tuple((found.get("path"), int(found.get("size"))) for found in cut)


def judge_restore(planned: PlannedRestore, host: HostState) -> RestoreVerdict:
    """Compare what the checkpoint needs with what the host has."""
    tree, outside = planned.tree, outside_pipes(planned)
    # CRIU's own numbers, not inodes, so they can be compared on any host. A zombie has none.
    user = tree.inventory.root_ids.namespaces.user
    others = (each for each in tree.processes if each.ids is not None and each.ids.namespaces.user != user)
    # A pipe that would become crckpt's output, if that is a socket.
    is_socket = any(planned.sockets & {2 if pipe.errors else 1} for pipe in outside)
    blockers, warnings = separate(
        (
            # The first one becomes the message of a refusal: a taken PID usually means that the program still runs.
            *(find_taken_ids(host) if not planned.new_pid_namespace else ()),
            *judge_files(planned, host),
            *judge_tasks(planned),
            *judge_sockets(planned, host),
            *judge_locks(tree, host),
            *(cause("user-namespace-recorded").finding(pid=each.pid, comm=each.comm) for each in others),
            *(cause("vdso-changed").finding(pid=pid) for pid in sorted(planned.unsound_vdsos)),
            *judge_requirements(planned, max(find_needed_ids(tree)), host.resources),
            *judge_terminals(planned, host),
            *((cause("output-socket").finding(),) if is_socket else ()),
        ),
        _WARNINGS,
    )
    return RestoreVerdict(
        blockers=blockers,
        warnings=warnings,
        outside_pipes=outside,
        needs_terminal=planned.tty not in ("null", "file") and needs_terminal(tree),
        two_way_pipes=two_way_pipes(tree),
        links=tuple(
            FoundLink(path, file.other_name, file.inode, file.owner)
            for path, file in host.files.items()
            if file and file.other_name
        ),
    )
