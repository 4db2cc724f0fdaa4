"""`crckpt dump`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from crckpt.cli import options
from crckpt.cli.format import count, duration, note_lines, round_line, short_id, size
from crckpt.cli.help import ADVANCED, INCREMENTAL
from crckpt.cli.output import checkpoint_document, criu_document, emit, pick
from crckpt.cli.progress import progress_bars
from crckpt.errors import CrckptError, UsageError
from crckpt.host.process.signals import continue_in_background
from crckpt.model import PAGE_SIZE
from crckpt.ops.dump.request import DumpRequest, PreCopy

if TYPE_CHECKING:
    from crckpt.ops.dump.result import DumpResult, LineageSummary, PreCopyResult
    from crckpt.store import Checkpoint

_MOST_ROUNDS: Final = 8


def dump(
    target: str = options.TARGET,
    job: str | None = options.JOB,
    stop: bool = options.flag("--stop", "End the tree, after its checkpoint is safe on disk."),
    rehearse: bool = options.flag(
        "--rehearse", "With --stop: first restore the checkpoint in isolation; if that fails, the tree keeps running."
    ),
    force: bool = options.flag(
        "--force",
        "With --stop: end the tree even if its restore is untested, or needs --allow-weaker. You may lose it.",
        ADVANCED,
    ),
    tcp: options.Tcp | None = options.option(
        "--tcp keep|close",
        "Established TCP connections: **keep** them (they continue after the restore; with --stop, a firewall rule "
        "blocks them until you restore or remove the checkpoint) or **close** them.",
        shown="refuse if there are any",
    ),
    skip_in_flight: bool = options.flag(
        "--skip-in-flight",
        "Leave out TCP connections that the program has not accepted yet. They are gone after a restore; with --stop "
        "the other side gets a reset.",
        ADVANCED,
    ),
    tag: str | None = options.option("--tag TAG", "Give the checkpoint a tag: JOB:TAG then names it."),
    note: str | None = options.option("--note TEXT", "A line of text to remember it by."),
    compress: int | None = options.COMPRESS,
    asynchronous: bool = options.flag(
        "--async",
        "Return as soon as the tree runs again; `crckpt list` shows when the checkpoint is safe on disk.",
        ADVANCED,
    ),
    incremental: bool | None = options.flag(
        "--incremental/--no-incremental",
        "Copy only what was written since the last checkpoint: the freeze is shorter. The first such dump is full, "
        "and starts a tracker.",
        INCREMENTAL,
        default=None,
        shown="yes if the tree is tracked, see crckpt ps",
    ),
    pre_copy: bool = options.flag(
        "--pre-copy",
        "Copy memory in rounds while the tree runs; then freeze it only for what was written during the last round.",
        INCREMENTAL,
    ),
    max_freeze: str | None = options.option(
        "--max-freeze TIME",
        "With --pre-copy: the longest freeze that you want, the budget (100ms, 0.5s). Rounds repeat until the "
        "estimated freeze is within it. If it never is, crckpt says so and dumps anyway.",
        INCREMENTAL,
        shown="until little is left to copy",
    ),
    max_rounds: int | None = options.option(
        "--max-rounds N",
        "With --pre-copy: copy this many rounds at most, then freeze the tree.",
        INCREMENTAL,
        min=1,
        shown=str(_MOST_ROUNDS),
    ),
    abort_over: bool = options.flag(
        "--abort-over",
        "With --max-freeze: freeze nothing and make no checkpoint if the estimated freeze is over the budget.",
        INCREMENTAL,
    ),
    staging: Path | None = options.STAGING,
    no_preflight: bool = options.NO_PREFLIGHT,
    other_program: bool = options.OTHER_PROGRAM,
    dry_run: bool = options.flag("--dry-run", "Check, and show what would be done; do nothing."),
    verbose: bool = options.VERBOSE,
) -> None:
    """Checkpoint a running process and all its descendants.

    The tree is frozen while CRIU copies its memory. Then it keeps running; with **--stop** it ends. If the dump fails
    or is interrupted, the tree keeps running. In the rare case that it cannot, crckpt says so and what to do (exit code
    22).

    For example:

        crckpt dump 812 trainer
        crckpt dump unit:redis --stop --tcp close --rehearse
        crckpt dump pidfile:/run/app.pid
    """
    # Fork before much is loaded: the kernel copies each page that the child changes, if only a count of references.
    release = continue_in_background() if asynchronous and not dry_run else None

    from crckpt.ops.dump.dump import dump as perform

    request = DumpRequest(
        target=target,
        job=job,
        stop=stop,
        tcp=tcp,
        tag=tag,
        note=note,
        dry_run=dry_run,
        asynchronous=asynchronous,
        preflight=not no_preflight,
        incremental=incremental,
        pre_copy=_rounds(pre_copy, max_rounds, max_freeze, abort_over),
        skip_in_flight=skip_in_flight,
        force=force,
        rehearse=rehearse,
        other_program=other_program,
    )

    def print_result(result: DumpResult) -> None:
        emit(_document(result), _lines(result, verbose=verbose), is_answer=dry_run)

    options.require_root("to checkpoint a process")
    context = options.make_context(staging=staging)
    if compress is not None:
        context = replace(context, compress=compress)
    # Without a progress bar: the shell takes the terminal back while the checkpoint is stored.
    if release is not None:

        def on_running(result: DumpResult) -> None:
            # The work in the background goes on even if this cannot be printed.
            with suppress(CrckptError):
                print_result(result)
            release()

        perform(request, context, on_running)
        return
    with progress_bars("copying" if pre_copy else "dumping", "storing") as (copying, storing):
        result = perform(request, replace(context, copy_progress=copying, progress=storing))
    print_result(result)


def _rounds(pre_copy: bool, max_rounds: int | None, max_freeze: str | None, abort_over: bool) -> PreCopy | None:
    limit = None if max_freeze is None else options.parse_milliseconds(max_freeze, "--max-freeze")
    if not pre_copy:
        # These have no defaults, so that it is known whether they were given.
        given = {
            "--max-rounds": max_rounds is not None,
            "--max-freeze": max_freeze is not None,
            "--abort-over": abort_over,
        }
        if names := [name for name, is_given in given.items() if is_given]:
            verb, rest = ("needs", "it") if len(names) == 1 else ("need", "them")
            raise UsageError(f"{' and '.join(names)} {verb} --pre-copy", hint=f"add --pre-copy, or leave {rest} out")
        return None
    if abort_over and max_freeze is None:
        raise UsageError(
            "--abort-over needs --max-freeze", hint="add --max-freeze TIME, for example --max-freeze 100ms"
        )
    return PreCopy(max_rounds or _MOST_ROUNDS, limit, abort_over)


def _document(result: DumpResult) -> dict[str, object]:
    checkpoint = result.checkpoint
    return {
        **pick(result, "job", "pid", "root_ended", "command", "unreaped"),
        **criu_document(result.criu),
        "dry_run": _is_dry_run(result),
        "committing": result.pending,
        "stopped": result.stop and checkpoint is not None,
        "rehearsed": result.rehearsal is not None,
        "reasons": result.plan.reasons,
        "warnings": list(map(str, result.plan.warnings)),
        "tracked": result.lineage,
        "copying": result.pre_copy,
        "checkpoint": None if checkpoint is None else checkpoint_document(checkpoint),
    }


def _is_dry_run(result: DumpResult) -> bool:
    return result.checkpoint is None and not result.pending


def _lines(result: DumpResult, *, verbose: bool) -> Iterator[str]:
    planned = _is_dry_run(result)
    yield from note_lines(result.criu.passed_over)
    yield from note_lines(result.plan.warnings)
    if verbose or planned:
        yield from (f"{reason.option}: {reason.why}\n" for reason in result.plan.reasons)
        yield f"{shlex.join(result.command)}\n"
    if result.pre_copy is not None:
        yield from _round_lines(result.pre_copy, planned=planned, stop=result.stop)
    if result.lineage is not None:
        yield from _lineage_lines(result.lineage, planned=planned, after_rounds=planned and result.pre_copy is not None)
    if planned:
        yield f"PID {result.pid} can be checkpointed as {result.job}\n"
    elif result.checkpoint is None:
        yield f"{result.job}: {_freeze(result, result.frozen_ms)}; {_tree_state(result)}\n"
        yield f"the checkpoint is being stored; check that it is safe: crckpt list {result.job}\n"
    else:
        yield from _checkpoint_lines(result, result.checkpoint)


def _checkpoint_lines(result: DumpResult, checkpoint: Checkpoint) -> Iterator[str]:
    numbers = checkpoint.statistics
    # Those of a tree that ended do not count how long its images were stored.
    frozen_ms = result.frozen_ms if result.stop else numbers.frozen_ms
    yield (
        f"{short_id(checkpoint.id)}  {checkpoint.job}: {count(len(checkpoint.tree), 'process')}, "
        f"{_freeze(result, frozen_ms)}, {size(numbers.raw_bytes)} of images; "
        f"the store grew by {size(numbers.stored_bytes)}\n"
    )
    if (rehearsal := result.rehearsal) is not None:
        yield from note_lines(rehearsal.warnings)
        started, ran = duration(rehearsal.restore_ms), duration(rehearsal.ran_s * 1000)
        yield f"rehearsed: restored in isolation in {started}, ran for {ran}\n"
    state = "the tree has ended" if result.stop else _tree_state(result)
    if not result.plan.is_restorable:
        yield f"{state}; this checkpoint cannot be restored\n"
        return
    when = "" if result.stop or result.root_ended else "once it has ended, "
    # By its id: another dump may become the newest checkpoint of the job.
    yield f"{state}; {when}bring it back with: crckpt restore {short_id(checkpoint.id)}\n"
    if result.unreaped:
        pids = ", ".join(str(pid) for pid in result.unreaped)
        yield f"these PIDs are not free yet, because their parent has not reaped them: {pids}\n"


def _freeze(result: DumpResult, frozen_ms: float) -> str:
    """Say how long the tree was frozen, and if that was over the budget of --max-freeze."""
    frozen, budget = f"frozen {duration(frozen_ms)}", result.pre_copy
    if budget is None or budget.max_freeze_ms is None or not budget.over_budget:
        return frozen
    return f"{frozen}, over the budget of {duration(budget.max_freeze_ms)}"


def _tree_state(result: DumpResult) -> str:
    return f"the tree's root, PID {result.pid}, has ended since" if result.root_ended else "the tree keeps running"


def _lineage_lines(lineage: LineageSummary, *, planned: bool, after_rounds: bool) -> Iterator[str]:
    """Say what was incremental, or would be; with `after_rounds` rounds come first."""
    # Without a tracker, the reason for a full dump says all.
    if lineage.tracker:
        yield f"{lineage.why}\n"
    if lineage.base is None and not lineage.rounds:
        full = "without rounds it would be a full dump" if after_rounds else "full dump"
        yield f"{full}: {lineage.why_full}\n"
        return
    since = f"round {lineage.rounds}" if lineage.rounds else short_id(lineage.base or "")
    if planned:
        yield f"incremental: what was written since {since}\n"
    else:
        written, left = (size(pages * PAGE_SIZE) for pages in (lineage.written_pages, lineage.left_pages))
        yield f"incremental: {written} written since {since}, {left} unchanged\n"
    yield from (f"dumped in full: {why}\n" for why in lineage.whole)


def _round_lines(pre_copy: PreCopyResult, *, planned: bool, stop: bool) -> Iterator[str]:
    if planned:
        yield "memory is copied in rounds first; the dump then copies what is written after the last round\n"
    yield from map(round_line, pre_copy.rounds)
    if pre_copy.foreseen_ms is not None and pre_copy.max_freeze_ms is not None:
        relation = "over" if pre_copy.foreseen_ms > pre_copy.max_freeze_ms else "within"
        estimate = f"estimated freeze: {duration(pre_copy.foreseen_ms)}"
        held = "; with --stop the tree also waits until its checkpoint is stored" if stop else ""
        yield f"{estimate}, {relation} the budget of {duration(pre_copy.max_freeze_ms)}{held}\n"
