"""`crckpt doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from crckpt.cli import options
from crckpt.cli.format import (
    count,
    draw_table,
    duration,
    escape,
    finding_lines,
    local_time,
    note_lines,
    on_one_line,
    size,
)
from crckpt.cli.output import ask, can_ask, criu_document, emit, pick, print_error
from crckpt.errors import HostCannot, UsageError
from crckpt.ops.doctor import Diagnosis, Fix, fix_host
from crckpt.ops.doctor import doctor as perform

if TYPE_CHECKING:
    from rich.console import Console

    from crckpt.host.probes.trial import Fact
    from crckpt.ops.context import Context
    from crckpt.ops.doctor import UsingProcess
    from crckpt.ops.dump.examine import DumpTarget
    from crckpt.ops.dump.forecast import DumpPrediction

_STATES: Final = {
    "ok": "[green]ok[/]",
    "limited": "[yellow]limited[/]",
    "missing": "[red]missing[/]",
    "unused": "[dim]unused[/]",
}


def doctor(
    target: str | None = options.argument(
        "TARGET",
        "A tree to check: PID, pidfile:PATH, unit:NAME or cgroup:PATH, or a running job.",
        default=None,
        shown="this host",
    ),
    fix: bool = options.flag("--fix", "Fix what can be fixed safely, after asking."),
    yes: bool = options.flag("--yes", "With --fix: do not ask."),
    everything: bool = options.flag("--all", "Also show what is fine."),
) -> None:
    """Check whether this host can make checkpoints, what limits it, and which command fixes that.

    crckpt tries everything out and trusts no version. It exits with 20 if nothing can be checkpointed here.

    With a **TARGET**: check, without stopping it, whether it can be checkpointed, what a restore would lose, and what
    to do about it. Show the options that `crckpt dump` would use. Estimate how long the tree would be frozen, how long
    the dump would take, and its size: for this, crckpt dumps a small tree of its own and stores a sample of the
    target's memory, and then removes both. It exits with 24 if the target cannot be checkpointed,
    or if `crckpt dump --stop` asks for `--force` because something of it would be lost.
    """
    if target is not None:
        options.require_root("to examine a process")
    context = options.make_context()
    if target is not None:
        _examine(target, context, fix=fix)
        return
    result = perform(context)
    if fix and _is_agreed(result.fixes, yes=yes):
        result = fix_host(context, result, print_error)
        for tried in result.fixes:
            said = f" ({tried.said})" if tried.said else ""
            print_error(f"{'done' if tried.done else 'failed'}: {tried.command}{said}")
    failure = None
    if not result.able:
        failure = HostCannot("nothing can be checkpointed on this host", hint="fix it: crckpt doctor --fix")
    document = pick(result, "able", "facts", "fixes")
    emit(document, lambda console: _draw(console, result, everything), is_answer=True, failure=failure)


def _examine(target: str, context: Context, *, fix: bool) -> None:
    # Slow to load, and not needed to check the host.
    from crckpt.causes import preflight_refusal
    from crckpt.ops.doctor import read_tree_usage
    from crckpt.ops.dump.examine import examine
    from crckpt.ops.dump.forecast import predict
    from crckpt.ops.dump.request import DumpRequest

    if fix:
        raise UsageError("--fix fixes this host and takes no TARGET", hint="crckpt doctor --fix")
    result = examine(DumpRequest(target), context)
    # Before the trials, which take a while: it is as when the tree was examined.
    processes = tuple(read_tree_usage(result.observed.tree))
    prediction = predict(result.observed, result.job, result.criu.path, result.context)
    document = {
        "pid": result.pid,
        "able": not result.plan.blockers,
        "processes": processes,
        **criu_document(result.criu),
        **pick(result.plan, "blockers", "warnings", "reasons"),
        "prediction": prediction.prediction,
        "prediction_assumes": prediction.assumes or None,
        "prediction_missing": prediction.why_not or None,
    }
    against = result.plan.blockers or result.plan.losses
    failure = preflight_refusal(against) if against else None
    lines = _examination_lines(result, processes, prediction)
    emit(document, lines, is_answer=True, failure=failure)


def _examination_lines(
    result: DumpTarget, processes: Sequence[UsingProcess], prediction: DumpPrediction
) -> Iterator[str]:
    if result.plan.blockers:
        yield f"PID {result.pid} cannot be checkpointed: {count(len(result.plan.blockers), 'blocker')}\n"
    else:
        yield f"PID {result.pid} can be checkpointed{', but not without loss' if result.plan.losses else ''}\n"
    if processes:
        root, usages = processes[0], [process.usage for process in processes]
        memory, cpu_s = sum(usage.memory_bytes for usage in usages), sum(usage.cpu_s for usage in usages)
        yield (
            f"PID {root.pid} {on_one_line(root.comm)}, started {local_time(root.usage.started)}: "
            f"{count(len(processes), 'process')}, {size(memory)} in memory, {duration(cpu_s * 1000)} of CPU\n"
        )
    yield from (f"{line}\n" for line in finding_lines(result.plan.blockers, "blocker: "))
    yield from note_lines(result.criu.passed_over)
    yield from note_lines(result.plan.warnings)
    yield from (f"{reason.option}: {reason.why}\n" for reason in result.plan.reasons)
    cost = prediction.prediction
    if cost is None:
        yield f"no estimate of what a dump would cost: {prediction.why_not}\n"
        return
    yield f"estimate of a dump, {prediction.assumes}:\n"
    yield f"  frozen  {duration(cost.frozen_ms)}\n"
    yield f"  time    {duration(cost.dump_ms)}, and {duration(cost.commit_ms)} more until it is safe on disk\n"
    yield f"  size    {size(cost.raw_bytes)} of images; the store grows by {size(cost.stored_bytes)}\n"


def _draw(console: Console, result: Diagnosis, everything: bool) -> None:
    verdict = "this host can checkpoint and restore programs"
    if not result.able and os.geteuid() == 0:
        verdict = "this host cannot checkpoint"
    elif not result.able:
        verdict = "only root can checkpoint; ask again as root: sudo crckpt doctor"
    console.print(f"[bold]{verdict}[/]")
    for fact in result.facts:
        if (fact.key, fact.state) == ("criu", "ok"):
            # It also names each CRIU that the user named and that does not work.
            console.print(escape(fact.found))
    shown, problems = result.shown, result.problems
    if problems and result.able:
        console.print("A point matters only if its effect concerns you:")
    facts = (*problems, *(fact for fact in shown if fact not in problems)) if everything else problems
    if facts:
        console.print()
        console.print(draw_table(("", "", ""), (_fact_row(fact, result.is_unused(fact)) for fact in facts)))
    if not everything:
        number = f"{len(shown) - len(problems)} of {len(shown)}"
        console.print()
        console.print(f"{'the other ' if problems else ''}{number} checks are fine: crckpt doctor --all shows them")


def _fact_row(fact: Fact, is_unused: bool) -> tuple[str, str, str]:
    lines = [escape(fact.found)]
    if fact.consequence:
        lines.append(escape(fact.consequence if fact.state == "ok" else f"effect: {fact.consequence}"))
    if fact.fix and not is_unused:
        lines.append(f"fix: [bold]{escape(fact.fix)}[/]")
    return _STATES["unused" if is_unused else fact.state], fact.key, "\n".join(lines)


def _is_agreed(fixes: tuple[Fix, ...], *, yes: bool) -> bool:
    if not fixes:
        print_error("nothing can be fixed safely")
        return False
    if yes:
        return True
    print_error(*(f"would run: {fix.command}" + (f" ({fix.effect})" if fix.effect else "") for fix in fixes))
    if not can_ask():
        print_error("nothing was changed, because there is no terminal to ask on: add --yes")
        return False
    if ask("run this?"):
        return True
    print_error("nothing was changed")
    return False
