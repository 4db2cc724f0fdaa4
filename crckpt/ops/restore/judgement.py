"""Judge whether a checkpoint can be restored here, before anything of it is restored."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from crckpt.causes import preflight_refusal
from crckpt.criu.find import Criu
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.attempt import RestoreAttempt
from crckpt.ops.restore.attributes import AttributeRestore
from crckpt.ops.restore.launch import find_work_place
from crckpt.ops.restore.open_files import RecordedFiles
from crckpt.ops.restore.outside_ends import socket_outputs
from crckpt.ops.restore.request import RestoreRequest
from crckpt.ops.restore.survey import survey
from crckpt.preflight.restore.checks import UNCONDITIONAL, RestoreVerdict, judge_restore
from crckpt.preflight.restore.plan import PlannedRestore
from crckpt.store import Checkpoint

if TYPE_CHECKING:
    from crckpt.store.format.index import StoredFile


def plan_restore(
    request: RestoreRequest,
    checkpoint: Checkpoint,
    tree: ImageTree,
    details: dict[str, Any],
    criu: Criu,
    *,
    is_orphan: bool = False,
    is_rehearsal: bool = False,
) -> PlannedRestore:
    """Plan the restore of a tree: what its checkpoint knows, and what the user chose. `is_orphan`: CRIU ends first."""
    recorded = RecordedFiles.of_details(details)
    has_terminal = request.tty != "ours" or (request.terminal is not None and not request.detach)
    # A new terminal is the tree's alone.
    is_foreign = request.terminal is not None and request.tty == "ours" and not request.allow_weaker
    return PlannedRestore(
        tree=tree,
        created=checkpoint.created,
        cpu_features=checkpoint.host.cpu_features,
        keeps_connections=(request.tcp or checkpoint.options.tcp) == "keep",
        append_sizes=details.get("append_sizes", {}),
        inodes=recorded.inodes,
        owners=recorded.owners,
        heads=recorded.heads,
        times=recorded.times,
        grown=request.grown,
        written=request.written,
        new_pid_namespace=request.new_pid_namespace,
        has_terminal=has_terminal or is_rehearsal,
        crius=(checkpoint.host.criu_version, criu.version),
        cpu_seconds=0 if is_rehearsal else details.get("cpu_seconds", 0),
        closed_pipes=frozenset(details.get("closed_pipes", ())),
        is_orphan=is_orphan,
        sockets=frozenset() if request.detach else socket_outputs(request.output),
        terminal_owner=os.fstat(request.terminal).st_uid if request.terminal is not None and is_foreign else None,
        may_have_consoles=request.allow_weaker,
        tty=request.tty,
        is_rehearsal=is_rehearsal,
        still_runs=request.still_runs,
        shares_kernel=request.shares_kernel,
    )


def judge_attempt(
    attempt: RestoreAttempt,
    tree: ImageTree,
    files: tuple[StoredFile, ...],
    details: dict[str, Any],
    attributes: AttributeRestore,
) -> RestoreVerdict:
    """Judge by the state of this host what the restore of a tree finds here, and what it lacks.

    Raises PreflightRefused if something prevents the restore that its user has not allowed.
    """
    request, checkpoint, kept = attempt.request, attempt.checkpoint, attributes.verdict
    planned = plan_restore(request, checkpoint, tree, details, attempt.criu, is_orphan=not attempt.is_sibling)
    verdict = judge_restore(planned, survey(planned, files, find_work_place(attempt.context, attempt.repository)))
    if kept.blockers:
        raise preflight_refusal(kept.blockers)
    # --no-preflight does not lift this: CRIU would restore the tree without a word, unprotected.
    if kept.weaker and not request.allow_weaker:
        raise preflight_refusal(kept.weaker)
    verdict = replace(
        verdict,
        blockers=(*attempt.running, *verdict.blockers),
        # The user has allowed what is weaker: report it all the same.
        warnings=(*verdict.warnings, *kept.weaker, *kept.lost),
    )
    checks = request.preflight or request.dry_run
    if blockers := tuple(found for found in verdict.blockers if checks or found.key in UNCONDITIONAL):
        raise preflight_refusal(blockers, is_in_use=verdict.is_in_use)
    return verdict
