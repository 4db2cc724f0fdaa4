"""Targets of dumps: a live tree as it was examined, or one written by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import observations
from small_programs import read

from crckpt.criu.find import Criu
from crckpt.host import proc
from crckpt.host.observe.tree import Observed, observe
from crckpt.model import JobName
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.lineage import open_lineage
from crckpt.ops.dump.plan import PlannedDump
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.dump.result import LineageSummary
from crckpt.preflight.dump.checks import plan_dump
from crckpt.store import Repository

# A program, since its header is read; it is not run.
CRIU = Criu(Path("/bin/true").resolve(), "PATH", "4.2.1", "0" * 64, locks_by_nftables=True)


def target_of(
    context: Context, observation: Observed = observations.PLAIN, request: DumpRequest | None = None, job: str = "job"
) -> DumpTarget:
    """A target of that observation, as `examine_target` makes it."""
    request = request or DumpRequest(str(observation.tree.root.pid))
    plan = plan_dump(observation, request.tcp, stop=request.stop, locks_by_nftables=True, names={})
    return DumpTarget(request, context, observation, JobName(job), CRIU, plan)


def planned(
    context: Context, observation: Observed = observations.PLAIN, request: DumpRequest | None = None, job: str = "job"
) -> PlannedDump:
    """A dump of that target, without a tracker."""
    return PlannedDump(target_of(context, observation, request, job))


def observe_live(root: proc.Process) -> Observed:
    """What crckpt reads of the live tree below `root`."""
    return observe(root, read(os.getpid()))


def predict_lineage(
    root: proc.Process,
    criu: Path,
    store: Callable[[], Repository],
    *,
    wanted: bool | None,
    apart: bool,
    before: proc.Identity | None = None,
) -> LineageSummary | None:
    """What a dump would count from now. Nothing is started."""
    lineage = open_lineage(root, criu, wanted=wanted, apart=apart, before=before, starts=False)
    if lineage is None:
        return None
    with closing(lineage):
        return lineage.predict(store, criu)
