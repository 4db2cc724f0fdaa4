"""`crckpt migrate`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import typer

from crckpt.cli import migrate_output, options
from crckpt.cli.format import count, duration, size
from crckpt.cli.help import ADVANCED, CONNECTIONS, DOWNTIME, UNFINISHED, WHERE
from crckpt.cli.migrate_output import move_document
from crckpt.cli.output import emit, form, pick, print_progress
from crckpt.cli.progress import progress_bars
from crckpt.errors import CommandFailure, Interrupted, MoveInDoubt, PartlyDone, UsageError
from crckpt.model import MoveId
from crckpt.store.move_status import find_status
from crckpt.store.moves import read_all_moves

if TYPE_CHECKING:
    from crckpt.migrate.drain import DrainResult, MoveOutcome
    from crckpt.migrate.request import MigrateRequest
    from crckpt.ops.context import Context

_MOST_ROUNDS: Final = 8
_AT_ONCE: Final = 2
_EXAMPLE: Final = "for example: crckpt migrate --all root@node2"
_DONE: Final = ("moved", "movable")
_LEFT: Final = ("stayed", "in-doubt", "unknown")
_ENDS: Final = {"movable": "can be moved", "in-doubt": "unfinished", "stayed": "stays here"}
# Parameters of `migrate` that no single move gets.
_OF_ALL: Final = ("everything", "at_once")


def migrate(
    parsed: typer.Context,
    target: str | None = options.argument(
        "TARGET", "PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root, or a running job.", default=None
    ),
    host: str | None = options.argument(
        "HOST", "The other host, as for ssh: [USER@]HOST, or ssh://[USER@]HOST:PORT.", default=None
    ),
    job: str | None = options.JOB,
    everything: bool = options.flag(
        "--all", "Empty this host: move all jobs that run here, the largest first. Leave out TARGET and JOB."
    ),
    at_once: int | None = options.option(
        "--at-once N", "With --all: move this many at a time; they share --bandwidth.", min=1, max=64, shown="2"
    ),
    check: bool = options.flag("--check", "Check both hosts, show what would be sent, move nothing."),
    send_files: bool = options.flag(
        "--send-files", "Send files that the program only reads or runs, and its logs, if the other host lacks them."
    ),
    tcp: options.Tcp | None = options.option(
        "--tcp keep|close",
        "Established TCP connections: **keep** them (their address must move too) or **close** them.",
        CONNECTIONS,
        shown="refuse if there are any",
    ),
    move_ip: list[str] | None = options.option(
        "--move-ip ADDR",
        "Move this address too (10.0.0.7/24@eth0, or @eth0:ens3 if that is its name there). Can be repeated.",
        CONNECTIONS,
    ),
    before_freeze: str = options.option(
        "--before-freeze CMD",
        "Run this shell command before the last freeze (to drain the program).",
        CONNECTIONS,
        default="",
        shown=False,
    ),
    address_hook: str = options.option(
        "--address-hook CMD",
        "Run this shell command to move the address by other means (a load balancer, a cloud).",
        CONNECTIONS,
        default="",
        shown=False,
    ),
    tty: Literal["new", "null"] | None = options.option(
        "--tty new|null",
        "What the program gets there instead of its terminal here. **new**: a new terminal, to which `crckpt attach` "
        "connects yours. **null**: nothing; its output is lost, its input is empty.",
        shown="refuse if it needs one",
    ),
    max_downtime: str | None = options.option(
        "--max-downtime TIME",
        "The longest downtime that you want (300ms, 2s). If rounds cannot reach it, the program is moved anyway.",
        DOWNTIME,
        shown="rounds until little is left to copy",
    ),
    max_rounds: int = options.option(
        "--max-rounds N", "Copy memory in at most this many rounds.", DOWNTIME, default=_MOST_ROUNDS, min=1
    ),
    abort_over: bool = options.flag(
        "--abort-over", "With --max-downtime: if it is out of reach, do not move.", DOWNTIME
    ),
    lazy: bool = options.flag(
        "--lazy",
        "Send memory once the program runs there (post-copy). If the connection is lost during that, the program ends.",
        DOWNTIME,
    ),
    local_lazy: bool = options.flag(
        "--local-lazy", "Start the program there before its memory is filled from the store there.", DOWNTIME
    ),
    bandwidth: str | None = options.option(
        "--bandwidth SPEED", "Send at most this many bytes per second (800K, 50M).", DOWNTIME
    ),
    bandwidth_clock: Path | None = options.option(
        "--bandwidth-clock FILE", "Share --bandwidth with other moves (`--all`).", hidden=True
    ),
    list_moves: bool = options.flag("--list", "List moves: where each program is, what to type next.", UNFINISHED),
    resume: str | None = options.option(
        "--resume MOVE",
        "Finish the interrupted move with this id. On the wrong host, crckpt names the right one.",
        UNFINISHED,
    ),
    source_is_gone: bool = options.flag(
        "--source-is-gone",
        "With --resume on the destination: promise that the source will never run again. If it does, two copies could "
        "run.",
        UNFINISHED,
    ),
    remote_crckpt: str = options.option(
        "--remote-crckpt CMD",
        "The command that runs crckpt on the other host: a path, or 'sudo crckpt'.",
        WHERE,
        default="crckpt",
    ),
    remote_store: str | None = options.option(
        "--remote-store DIR", "The store on the other host.", WHERE, shown="the one that crckpt uses there"
    ),
    allow_weaker: bool = options.flag(
        "--allow-weaker", "Move the program even if it will be less protected there than here.", ADVANCED
    ),
    no_preflight: bool = options.NO_PREFLIGHT,
    other_program: bool = options.OTHER_PROGRAM,
) -> None:
    """Move a running process and all its descendants to another host, over ssh.

    This is live migration: memory is copied while the program runs, then the program is frozen, the rest is copied, and
    it continues there. If that fails, it keeps running here. It never runs on both hosts. If the connection is lost
    after the program has ended here, crckpt connects again, or prints what to type later (exit code 31). Both hosts
    need crckpt, and root.

    For example:

        crckpt migrate 812 root@node2 --check
        crckpt migrate 812 root@node2
        crckpt migrate 812 node2 --tcp keep --move-ip 10.0.0.7/24@eth0
        crckpt migrate --all root@node2 --bandwidth 50M
        crckpt migrate 812 root@node2 editor --tty new
        crckpt migrate --list
    """
    options.require_root("to migrate a process")
    if everything:
        refused = (("--move-ip", move_ip), ("--list", list_moves), ("--resume", resume))
        target, host = "", _check_words(target, host, refused)
    elif at_once is not None:
        raise UsageError("--at-once needs --all", hint="for example: crckpt migrate --all root@node2 --at-once 4")
    context = options.make_context()
    if list_moves:
        records, unreadable = read_all_moves(context.repository().backend)
        moves = tuple(map(find_status, records))
        document: dict[str, object] = {"moves": tuple(map(move_document, moves)), "unreadable": unreadable}
        lines = migrate_output.move_lines(moves, unreadable)
        emit(document, lines, is_answer=True)
        return
    if resume is not None:
        from crckpt.migrate.resume import resume as perform_resume

        ended = perform_resume(MoveId(resume), context, source_is_gone=source_is_gone)
        document = migrate_output.resume_document(ended)
        emit(document, migrate_output.resume_lines(ended))
        return
    if source_is_gone:
        raise UsageError("--source-is-gone needs --resume", hint="list moves: crckpt migrate --list")
    if abort_over and max_downtime is None:
        raise UsageError("--abort-over needs --max-downtime", hint="for example: --max-downtime 300ms --abort-over")
    if target is None or host is None:
        raise UsageError("crckpt migrate needs a target and a host", hint="for example: crckpt migrate 812 root@node2")
    if target.isdecimal() and host.isdecimal() and Path("/proc", host).exists():
        # $(pgrep NAME) may find several PIDs.
        raise UsageError(f"{host} is a PID, not a host", hint=f"name one process; see both: ps -fp {target},{host}")

    from crckpt.migrate.request import MigrateRequest, MoveReport
    from crckpt.migrate.session import migrate as perform
    from crckpt.migrate.wire.messages import RestoreOptions

    request = MigrateRequest(
        target=target,
        host=host,
        job=job,
        check=check,
        max_downtime_ms=None if max_downtime is None else options.parse_milliseconds(max_downtime, "--max-downtime"),
        abort_over=abort_over,
        max_rounds=max_rounds,
        options=RestoreOptions(
            tcp=tcp,
            tty=tty,
            allow_weaker=allow_weaker,
            preflight=not no_preflight,
            addresses=tuple(move_ip or ()),
            lazy=_choose_lazy(lazy=lazy, local_lazy=local_lazy),
        ),
        bandwidth=None if bandwidth is None else options.parse_bandwidth(bandwidth, "--bandwidth"),
        bandwidth_clock=bandwidth_clock,
        before_freeze=before_freeze,
        address_hook=address_hook,
        send_files=send_files,
        other_program=other_program,
        remote_crckpt=remote_crckpt,
        remote_store=remote_store,
    )
    if everything:
        _migrate_all(request, context, parsed, at_once)
        return
    # ssh may ask for a password first.
    with progress_bars("copying", "storing", "sending", waits=True) as (copying, storing, sending):
        report = MoveReport(copying, storing, sending, print_progress, migrate_output.print_round)
        result = perform(request, context, report)
    document, lines = migrate_output.result_document(result), migrate_output.result_lines(result, remote_crckpt)
    emit(document, lines, is_answer=check)


def _choose_lazy(*, lazy: bool, local_lazy: bool) -> Literal["source", "local"] | None:
    if lazy and local_lazy:
        raise UsageError("--lazy cannot be combined with --local-lazy", hint="choose one of them")
    return "source" if lazy else "local" if local_lazy else None


def _check_words(target: str | None, host: str | None, refused: Iterable[tuple[str, object]]) -> str:
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


def _migrate_all(request: MigrateRequest, context: Context, parsed: typer.Context, at_once: int | None) -> None:
    """Move all programs, print what moved and what stayed, and exit.

    Raises UsageError, StoreUnusable, RemoteError if the other host cannot be reached.
    """
    # Not needed for the help.
    from crckpt.migrate.drain import Drain, DrainReport, DrainResult, find_running_jobs, make_command
    from crckpt.migrate.session import find_free_bytes
    from crckpt.migrate.wire.ssh import check_host
    from crckpt.migrate.wire.writer import shared_clock

    check_host(request.host)
    doing = "checking" if request.check else "moving"
    repository = context.repository()
    jobs, excluded = find_running_jobs(repository)
    together = min(at_once or _AT_ONCE, max(len(jobs), 1))
    # Once, not for each program.
    free_bytes = find_free_bytes(request, context) if jobs else 0
    with shared_clock() as clock:
        words = make_options(parsed, request.bandwidth, clock, together)
        report = DrainReport(
            begin=lambda job: print_progress(
                f"{job.job}: {doing} PID {job.root.pid}, {size(job.memory_bytes)} of memory ..."
            ),
            say=lambda job, line: print_progress(f"{job.job}: {line}"),
            end=lambda outcome: print_progress(f"{outcome.job}: {_ENDS.get(outcome.outcome, outcome.outcome)}"),
        )
        host = request.host
        moves = Drain(deque(jobs), repository, lambda job: make_command(job, host, words), free_bytes, report, host)
        done = moves.run(together)
    result = DrainResult((*done.outcomes, *excluded), done.interrupted, free_bytes)
    failure = find_failure(result)
    is_answer = request.check or failure is not None
    document = {**pick(request, "host", "check"), "interrupted": result.interrupted, "jobs": result.outcomes}
    emit(document, summary_lines(result, request), is_answer=is_answer, failure=failure)


def make_options(parsed: typer.Context, bandwidth: int | None, clock: Path, together: int) -> tuple[str, ...]:
    """Build the options of each move: those that were given. They share the `bandwidth` by the clock.

    Raises UsageError if it is too low for this many moves.
    """
    if bandwidth is not None and bandwidth // together < options.LEAST_BANDWIDTH:
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
