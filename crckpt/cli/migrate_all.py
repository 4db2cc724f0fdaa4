"""`crckpt migrate --all`: move all programs of a store to another host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from crckpt.cli.format import count, duration, size
from crckpt.cli.options import LEAST_BANDWIDTH
from crckpt.cli.output import emit, form, pick, print_progress
from crckpt.errors import CommandFailure, Interrupted, MoveInDoubt, PartlyDone, UsageError

if TYPE_CHECKING:
    from crckpt.migrate.drain import DrainResult, MoveOutcome, RunningJob
    from crckpt.migrate.request import MigrateRequest
    from crckpt.ops.context import Context

_AT_ONCE: Final = 2
_EXAMPLE: Final = "for example: crckpt migrate --all root@node2"
_DONE: Final = ("moved", "movable")
_LEFT: Final = ("stayed", "in-doubt", "unknown")
# Parameters of `migrate` that no single move gets.
_OF_ALL: Final = ("everything", "at_once")


def check_words(target: str | None, host: str | None, refused: Iterable[tuple[str, object]]) -> str:
    """Return the host of `migrate --all HOST`: the only word. `refused` are options that it excludes.

    Raises UsageError.
    """
    for name, value in refused:
        if value:
            why = ": an address belongs to one program" if name == "--move-ip" else ""
            raise UsageError(f"--all cannot be combined with {name}{why}", hint=f"leave out {name}, or --all")
    if target is None or host is not None:
        raise UsageError("crckpt migrate --all takes one word, the host", hint=_EXAMPLE)
    return target


def migrate_all(request: MigrateRequest, context: Context, parsed: typer.Context, at_once: int | None) -> None:
    """Move all programs, print what moved and what stayed, and exit.

    Raises UsageError, StoreUnusable, RemoteError if the other host cannot be reached.
    """
    # Not needed for the help.
    from crckpt.migrate.drain import DrainResult, drain, find_running_jobs, make_command
    from crckpt.migrate.session import find_free_bytes
    from crckpt.migrate.wire.ssh import check_host
    from crckpt.migrate.wire.writer import shared_clock

    check_host(request.host)
    repository = context.repository()
    found = find_running_jobs(repository)
    together = min(at_once or _AT_ONCE, max(len(found.jobs), 1))
    # Once, not for each program.
    free_bytes = find_free_bytes(request, context) if found.jobs else 0
    with shared_clock() as clock:
        words = make_options(parsed, request.bandwidth, clock, together)
        done = drain(
            found.jobs,
            repository,
            lambda job: make_command(job, request.host, words),
            together,
            free_bytes,
            _Progress(request.check),
            request.host,
        )
    result = DrainResult((*done.outcomes, *found.excluded), done.interrupted, free_bytes)
    failure = find_failure(result)
    is_answer = request.check or failure is not None
    document = {**pick(request, "host", "check"), "interrupted": result.interrupted, "jobs": result.outcomes}
    emit(document, summary_lines(result, request), is_answer=is_answer, failure=failure)


def make_options(parsed: typer.Context, bandwidth: int | None, clock: Path, together: int) -> tuple[str, ...]:
    """Build the options of each move: those that were given. They share the `bandwidth` by the clock.

    Raises UsageError if it is too low for this many moves.
    """
    if bandwidth is not None and bandwidth // together < LEAST_BANDWIDTH:
        raise UsageError(
            f"--bandwidth is too low for {count(together, 'move')} at the same time: each needs 16K bytes per second",
            hint="raise it, or move one program after the other: --at-once 1",
        )
    words = [f"--bandwidth-clock={clock}"] if bandwidth is not None else []
    for option in parsed.command.params:
        value = parsed.params.get(option.name or "")
        # Arguments, and what belongs to all moves together, are not passed on. Neither is what has no value.
        if option.param_type_name == "option" and option.name not in _OF_ALL and value:
            words.append(option.opts[0] if value is True else f"{option.opts[0]}={value}")
    return (*words, "--quiet") if form.is_quiet else tuple(words)


class _Progress:
    """Prints the progress of all moves, each line with its job."""

    def __init__(self, is_check: bool) -> None:
        self._doing = "checking" if is_check else "moving"

    def begin(self, job: RunningJob) -> None:
        """Print that a move begins."""
        print_progress(f"{job.job}: {self._doing} PID {job.root.pid}, {size(job.memory_bytes)} of memory ...")

    def say(self, job: RunningJob, line: str) -> None:
        """Print what a move does."""
        print_progress(f"{job.job}: {line}")

    def end(self, outcome: MoveOutcome) -> None:
        """Print that a move has ended."""
        what = {"movable": "can be moved", "in-doubt": "unfinished", "stayed": "stays here"}
        print_progress(f"{outcome.job}: {what.get(outcome.outcome, outcome.outcome)}")


def find_failure(result: DrainResult) -> CommandFailure | None:
    """Return the failure about which the user must do most; None if all was moved that should be."""
    outcomes = {each.outcome for each in result.outcomes}
    if "in-doubt" in outcomes:
        return MoveInDoubt("some programs may run nowhere", hint="see what is unfinished: crckpt migrate --list")
    if not outcomes.intersection(_LEFT):
        return None
    kind = Interrupted if result.interrupted else PartlyDone
    return kind(
        "some programs stayed here", causes=tuple(each.why for each in result.outcomes if each.outcome in _LEFT)
    )


def summary_lines(result: DrainResult, request: MigrateRequest) -> Iterator[str]:
    """Say what moved, what stayed and why."""
    done = [each for each in result.outcomes if each.outcome in _DONE]
    left = [each for each in result.outcomes if each.outcome in _LEFT]
    for each in result.outcomes:
        if each.outcome == "included":
            yield f"{_name(each)} is not moved by itself: {each.why}\n"
        elif each.outcome == "ended":
            yield f"{_name(each)} was not moved: {each.why}\n"
    if not done and not left:
        yield f"nothing to move to {request.host}: no program of a job in this store is running here\n"
        return
    programs = count(len(done) + len(left), "program")
    verb = "can be moved" if request.check else "moved"
    yield f"{len(done)} of {programs} {verb} to {request.host}\n"
    for each in done:
        yield f"  {_name(each)}: {_describe(each)}\n"
        yield from (f"    note: {warning}\n" for warning in (each.result or {}).get("warnings", ()))
    needed = sum(each.memory_bytes for each in done)
    if request.check and len(done) > 1 and needed > result.free_bytes:
        yield (
            f"note: together they have {size(needed)} of memory, and {request.host} has {size(result.free_bytes)} "
            "free: they may not all fit\n"
        )
    if left:
        stays = "would stay" if request.check else "stayed here, or may run on neither host"
        if all(each.outcome != "in-doubt" for each in left):
            stays = "would stay here" if request.check else "stayed here"
        yield f"{len(left)} of {programs} {stays}\n"
    for each in left:
        yield from _reason_lines(each)


def _name(outcome: MoveOutcome) -> str:
    return f"{outcome.job} (PID {outcome.pid})" if outcome.pid is not None else outcome.job


def _describe(outcome: MoveOutcome) -> str:
    result = outcome.result
    if result is None:
        return outcome.why
    if outcome.outcome == "movable":
        files = f", and {count(len(result['to_send']), 'file')}" if result["to_send"] else ""
        return f"{size(outcome.memory_bytes)} of memory to send, before compression{files}"
    if result["downtime_ms"] is None:
        return "runs there; the connection was lost, so the downtime is not known"
    over = " (over the budget of --max-downtime)" if result["over_budget"] else ""
    return (
        f"runs there as PID {result['pid']}, downtime {duration(result['downtime_ms'])}{over}, "
        f"{size(result['sent_bytes'])} sent in {duration(result['seconds'] * 1000)}"
    )


def _reason_lines(outcome: MoveOutcome) -> Iterator[str]:
    """A program that stayed, all reasons, and what to type."""
    if len(outcome.causes) > 1:
        yield f"  {_name(outcome)}: {len(outcome.causes)} reasons\n"
        yield from (f"    - {cause}\n" for cause in outcome.causes)
        return
    yield f"  {_name(outcome)}: {outcome.why}\n"
    if outcome.hint:
        yield f"    hint: {outcome.hint}\n"
