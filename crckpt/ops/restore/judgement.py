"""Judge whether a checkpoint can be restored here, before anything of it is restored."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from crckpt.causes.refusal import preflight_refusal
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.attempt import RestoreAttempt
from crckpt.ops.restore.attributes import AttributeRestore
from crckpt.ops.restore.open_files import RecordedFiles
from crckpt.ops.restore.outside_ends import socket_outputs
from crckpt.ops.restore.request import RestoreRequest
from crckpt.ops.restore.survey import survey
from crckpt.ops.restore.work_directory import find_work_place
from crckpt.preflight.restore.checks import UNCONDITIONAL, RestoreVerdict, judge_restore
from crckpt.preflight.restore.plan import PlannedRestore

if TYPE_CHECKING:
    from crckpt.store.format.index import StoredFile


def judge_attempt(
    attempt: RestoreAttempt, tree: ImageTree, files: tuple[StoredFile, ...], details: dict[str, Any]
) -> RestoreVerdict:
    """Judge by the state of this host what the restore of a tree finds here, and what it lacks."""
    request, checkpoint = attempt.request, attempt.checkpoint
    recorded = RecordedFiles.of_details(details)
    planned = PlannedRestore(
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
        has_terminal=request.tty != "ours" or (request.terminal is not None and not request.detach),
        crius=(checkpoint.host.criu_version, attempt.criu.version),
        cpu_seconds=details.get("cpu_seconds", 0),
        closed_pipes=frozenset(details.get("closed_pipes", ())),
        is_orphan=not attempt.is_sibling,
        sockets=frozenset() if request.detach else socket_outputs(request.output),
        terminal_owner=_terminal_owner(request),
        may_have_consoles=request.allow_weaker,
        tty=request.tty,
        still_runs=request.still_runs,
        shares_kernel=request.shares_kernel,
    )
    place = find_work_place(attempt.context, attempt.repository)
    verdict = judge_restore(planned, survey(planned, files, place))
    return replace(verdict, blockers=(*attempt.running, *verdict.blockers))


def refuse_blocked(request: RestoreRequest, verdict: RestoreVerdict, attributes: AttributeRestore) -> None:
    """Raise PreflightRefused if something prevents the restore that its user has not allowed."""
    if attributes.verdict.blockers:
        raise preflight_refusal(attributes.verdict.blockers)
    # --no-preflight does not lift this: CRIU would restore the tree without a word, unprotected.
    if attributes.verdict.weaker and not request.allow_weaker:
        raise preflight_refusal(attributes.verdict.weaker)
    blockers = verdict.blockers
    if not (request.preflight or request.dry_run):
        blockers = tuple(blocker for blocker in blockers if blocker.key in UNCONDITIONAL)
    if blockers:
        raise preflight_refusal(blockers, is_in_use=verdict.is_in_use)


def _terminal_owner(request: RestoreRequest) -> int | None:
    """The owner of the terminal that the tree gets from us; None if it does not matter."""
    # A new terminal is the tree's alone.
    if request.terminal is None or request.allow_weaker or request.tty != "ours":
        return None
    return os.fstat(request.terminal).st_uid
