"""The plan of a dump: the target, what it counts from, and the rounds before it."""

from __future__ import annotations

from msgspec import Struct

from crckpt.causes import Finding
from crckpt.criu.command import Paths, dump_command
from crckpt.host import proc
from crckpt.ops.context import pid_namespace_words, setpriv_words
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.lineage import Lineage
from crckpt.ops.dump.parent_images import ParentImages
from crckpt.ops.dump.result import PreCopyResult
from crckpt.tracking.preload.library import dump_words


class PlannedDump(Struct, frozen=True):
    """A dump of a target, as it is to be made.

    `lineage` is None unless the dump is to be incremental, or the base of one; `pre_copy` are the rounds before it.
    `warnings` come after those on the target itself. `tracked_before` is the root that the job's last checkpoint names
    as tracked.
    """

    target: DumpTarget
    lineage: Lineage | None = None
    pre_copy: PreCopyResult | None = None
    warnings: tuple[Finding, ...] = ()
    tracked_before: proc.Identity | None = None

    @property
    def parent(self) -> ParentImages | None:
        """The checkpoint that the dump counts from."""
        return self.lineage.parent if self.lineage is not None else None

    def command(self, paths: Paths) -> tuple[str, ...]:
        """CRIU's command line for the dump with these paths."""
        target, lineage = self.target, self.lineage
        root, enter, as_user = target.observed.tree.root, target.plan.enter, target.plan.as_user
        # A CRIU in the tree's PID namespace knows the root by the number that it has there.
        pid = root.ns_pids[-1] if "pid" in enter else root.pid
        tracks = lineage is not None and lineage.tracks
        words = dump_command(
            target.criu.path,
            pid,
            paths,
            target.plan.options,
            leave_running=not target.request.stop,
            unprivileged=as_user is not None,
            track=tracks,
            base=str(self.parent.directory) if self.parent else None,
        )
        if lineage is not None and tracks:
            words = (*lineage.environment, *words)
        else:
            words = (*dump_words(target.criu.path, enter=pid if enter else None), *words)
        user = setpriv_words(as_user, target.observed.own_capabilities)
        return (*(pid_namespace_words(root.pid) if "pid" in enter else ()), *user, *words)
