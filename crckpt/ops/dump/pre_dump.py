"""Copy what was written since the last round or dump while the tree runs: the next dump counts from there."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path

from crckpt.errors import HostCannot, Interrupted
from crckpt.host.process.signals import interrupts_deferred
from crckpt.ops.context import Context, require_writable_store
from crckpt.ops.dump.aftermath import tree_state_reported
from crckpt.ops.dump.examine import DumpTarget, check_job, examine_target
from crckpt.ops.dump.launch import pinned_target
from crckpt.ops.dump.lineage import open_lineage
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.dump.result import PreDumpResult
from crckpt.ops.dump.rounds import take_round
from crckpt.ops.failures import limited_waits_of_dump, nothing_begun_reported, to_dump_error
from crckpt.ops.last_checkpoint import read_last_checkpoint
from crckpt.store import Repository


def pre_dump(request: DumpRequest, context: Context) -> PreDumpResult:
    """Take a round. The tree's keeper holds it, and removes it when it ends.

    Raises UsageError, PreflightRefused, HostCannot (nothing tells what was written, and why), StoreUnusable,
    StoreLocked, DumpFailed or Interrupted; not Interrupted once the round is taken. The tree always keeps running.
    """
    done: PreDumpResult | None = None
    try:
        with ExitStack() as stack:
            with nothing_begun_reported(context):
                request, root = stack.enter_context(pinned_target(request, context))
                stack.enter_context(limited_waits_of_dump(root.pid))
                require_writable_store(context)
                target = examine_target(request, context, root, stores=False)
                repository = context.repository(create=True)
                stack.enter_context(repository.shared())
                check_job(target, read_last_checkpoint(repository, target.job), "pre-dump")
                work = stack.enter_context(repository.transaction())
                # An interruption after this block and before the next would leave the tree's state unsaid.
                stack.enter_context(interrupts_deferred())
            with tree_state_reported(target.observed.tree, work / "pre-dump.log", repository, context):
                done = _take_round(target, repository, work)
    except Interrupted:
        if done is None:
            raise
    return done


def _take_round(target: DumpTarget, repository: Repository, work: Path) -> PreDumpResult:
    lineage = open_lineage(target.observed.tree.root, target.criu.path, wanted=True, apart=target.plan.runs_apart)
    assert lineage is not None
    try:
        result = take_round(target, lineage, repository, work)
    except HostCannot as error:
        hint = f"crckpt dump {shlex.quote(target.request.target)} {target.job} makes a full checkpoint"
        raise HostCannot(f"nothing was copied: {error.message}", hint=hint) from error
    except OSError as error:
        raise to_dump_error(error, "the round", target.context) from error
    finally:
        lineage.close()
    return PreDumpResult(target.job, target.pid, target.criu, lineage.summary, result)
