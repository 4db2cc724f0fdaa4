"""Gather what prevents a restore on this host, and what no longer matches the program's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore import files, locks, pipes, requirements, sockets, tasks, terminals, watches
from crckpt.preflight.restore.files import Rewind
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.pipes import OutsidePipe
from crckpt.preflight.restore.plan import PlannedRestore

UNCONDITIONAL = frozenset({"user-namespace-recorded"})
"""Keys of blockers that --no-preflight does not lift."""

# The program itself may be running: --or-older must not start an older one next to it.
_IN_USE = (
    "job-runs",
    "pid-taken",
    "pid-ours",
    "pid-unreaped",
    "port-closing",
    "port-taken",
    "lock-taken",
    "file-being-written",
    "terminal-taken",
    "unix-taken",
    "netlink-taken",
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
    rewinds: tuple[Rewind, ...]
    outside_pipes: tuple[OutsidePipe, ...]
    needs_terminal: bool
    two_way_pipes: frozenset[int] = frozenset()
    links: tuple[FoundLink, ...] = ()

    @property
    def is_in_use(self) -> bool:
        """Whether another program has something that the tree needs, at this moment."""
        return any(finding.key in _IN_USE for finding in self.blockers)


def judge_restore(planned: PlannedRestore, host: HostState) -> RestoreVerdict:
    """Compare what the checkpoint needs with what the host has."""
    checked = files.check_files(planned, host)
    outside_pipes = pipes.outside_pipes(planned)
    return RestoreVerdict(
        # The first one becomes the message of a refusal: a taken PID usually means that the program still runs.
        blockers=(
            *(tasks.find_taken_ids(host) if not planned.new_pid_namespace else ()),
            *checked.blockers,
            *tasks.find_hung_up(planned),
            *sockets.find_blockers(planned, host),
            *watches.find_blockers(planned.tree, host),
            *locks.find_blockers(planned.tree, host),
            *_find_other_user_namespaces(planned.tree),
            *requirements.find_older_criu(*planned.crius),
            *requirements.find_blockers(
                planned.tree, planned.cpu_features, max(tasks.find_needed_ids(planned.tree)), host.resources
            ),
            *terminals.find_blockers(planned, host),
            *pipes.find_blockers(planned, outside_pipes),
        ),
        warnings=(
            *checked.warnings,
            *requirements.find_warnings(host.resources),
            *tasks.find_warnings(planned),
            *terminals.find_warnings(planned),
        ),
        rewinds=checked.rewinds,
        outside_pipes=outside_pipes,
        needs_terminal=planned.tty not in ("null", "file") and terminals.needs_terminal(planned.tree),
        two_way_pipes=pipes.two_way_pipes(planned.tree),
        links=tuple(
            FoundLink(path, file.other_name, file.inode, file.owner)
            for path, file in host.files.items()
            if file and file.other_name
        ),
    )


def _find_other_user_namespaces(tree: ImageTree) -> Iterator[Finding]:
    """Find processes that were dumped in another user namespace than CRIU's."""
    # These are CRIU's own numbers, not inodes, so they can be compared on any host. A zombie has none.
    outside = tree.inventory.root_ids.namespaces.user
    for process in tree.processes:
        if process.ids is not None and process.ids.namespaces.user != outside:
            yield cause("user-namespace-recorded").finding(pid=process.pid, comm=process.comm)
