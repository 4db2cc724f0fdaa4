"""`crckpt migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.format import count, duration, note_lines, short_id, size
from crckpt.cli.help import ADVANCED, INCREMENTAL
from crckpt.cli.output import Output, emit, print_progress
from crckpt.errors import UsageError

if TYPE_CHECKING:
    from crckpt.migrate.request import MigrateResult, RoundSummary
    from crckpt.migrate.resume import ResumeResult
    from crckpt.store.moves import Move

_MOST_ROUNDS = 8


class _Report:
    """Prints what happens, a line each."""

    def say(self, line: str) -> None:
        print_progress(line)

    def end_round(self, number: int, summary: RoundSummary) -> None:
        print_progress(
            f"round {number}: copied {size(summary.raw_bytes)}, sent {size(summary.sent_bytes)} in "
            f"{duration(summary.seconds * 1000)}, frozen {duration(summary.frozen_ms)}; "
            f"estimated downtime {duration(summary.estimated_ms)}"
        )


def migrate(
    target: Annotated[
        str | None,
        typer.Argument(help="PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root.", metavar="TARGET"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Argument(help="The other host, as for ssh: [USER@]HOST.", metavar="[USER@]HOST"),
    ] = None,
    job: options.Job = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check on both hosts whether it would work; move nothing.")
    ] = False,
    tcp: Annotated[
        options.TcpConnections | None,
        typer.Option(
            "--tcp",
            help="Established TCP connections: **keep** them (their address must move, too: --move-ip) or **close** "
            "them.",
            metavar="keep|close",
            show_default="refuse if there are any",
        ),
    ] = None,
    max_downtime: Annotated[
        str | None,
        typer.Option(
            "--max-downtime",
            help="The longest time without a running program that you want (300ms, 2s). Rounds of copies repeat until "
            "the estimate is within it.",
            show_default="until little is left",
            metavar="TIME",
            rich_help_panel=INCREMENTAL,
        ),
    ] = None,
    max_rounds: Annotated[
        int,
        typer.Option(
            "--max-rounds",
            min=1,
            help="Copy in this many rounds at most while the tree runs.",
            metavar="N",
            rich_help_panel=INCREMENTAL,
        ),
    ] = _MOST_ROUNDS,
    abort_over: Annotated[
        bool,
        typer.Option(
            "--abort-over",
            help="With --max-downtime: leave the tree here if the estimate is over it.",
            rich_help_panel=INCREMENTAL,
        ),
    ] = False,
    move_ip: Annotated[
        list[str] | None,
        typer.Option(
            "--move-ip",
            help="Move this address with the program; may be given several times. With --tcp keep its clients notice "
            "a pause only.",
            metavar="ADDR/LEN@DEV",
        ),
    ] = None,
    send_files: Annotated[
        bool, typer.Option("--send-files", help="Send files that the program uses and the other host lacks.")
    ] = False,
    bandwidth: Annotated[
        str | None,
        typer.Option("--bandwidth", help="Send at most so many bytes a second (50M).", metavar="SPEED"),
    ] = None,
    before_freeze: Annotated[
        str,
        typer.Option(
            "--before-freeze",
            help="A shell command to run before the program is frozen, for example to drain it.",
            metavar="COMMAND",
            show_default=False,
            rich_help_panel=ADVANCED,
        ),
    ] = "",
    address_hook: Annotated[
        str,
        typer.Option(
            "--address-hook",
            help="A shell command that moves the address by other means (a load balancer, a cloud).",
            metavar="COMMAND",
            show_default=False,
            rich_help_panel=ADVANCED,
        ),
    ] = "",
    resume: Annotated[
        str | None,
        typer.Option("--resume", help="Finish a move that was broken off, on either host.", metavar="MOVE"),
    ] = None,
    source_is_gone: Annotated[
        bool,
        typer.Option(
            "--source-is-gone",
            help="With --resume: the source host is gone for ever, with its tree. Never use it for a host that may "
            "come back: the program could then run twice.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    list_moves: Annotated[bool, typer.Option("--list", help="List the last move of each job.")] = False,
    allow_weaker: Annotated[
        bool,
        typer.Option(
            "--allow-weaker",
            help="Move the tree even if it comes back less protected than it was.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    no_preflight: options.NoPreflight = False,
    other_program: options.OtherProgram = False,
    remote_crckpt: Annotated[
        str,
        typer.Option(
            "--remote-crckpt",
            help="crckpt on the other host.",
            metavar="FILE",
            rich_help_panel=ADVANCED,
        ),
    ] = "crckpt",
    remote_store: Annotated[
        str | None,
        typer.Option(
            "--remote-store",
            help="The store on the other host.",
            metavar="DIR",
            show_default="as crckpt has it there",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Move a running process and all its descendants to another host, over ssh.

    Memory is copied while the tree runs. Then it is frozen, the rest is copied, and it runs on over there. Until it
    has been built over there, every failure lets it run on here. The checkpoint stays in both stores. crckpt must be
    installed on both hosts.

    For example:

        crckpt migrate 812 root@node2 --check
        crckpt migrate 812 root@node2
        crckpt migrate unit:redis node2 --tcp keep --move-ip 10.0.0.7/24@eth0
        crckpt migrate --resume 3f0c9a7be1d24c58
    """
    options.require_root("to migrate a process")
    context = options.make_context(store, criu=criu, config=config)
    if list_moves:
        from crckpt.store.moves import read_moves

        moves = read_moves(context.repository().backend)
        emit(
            "migrate",
            Output({"moves": list(map(_move_document, moves))}, _move_lines(moves), is_answer=True),
            as_json=as_json,
        )
        return
    if resume is not None:
        from crckpt.migrate.session import resume as perform_resume

        found = perform_resume(resume, context, source_is_gone=source_is_gone)
        emit("migrate", Output(_resume_document(found), _resume_lines(found)), as_json=as_json)
        return
    if target is None or host is None:
        raise UsageError("crckpt migrate needs a target and a host", hint="for example: crckpt migrate 812 root@node2")

    from crckpt.migrate.messages import RestoreOptions
    from crckpt.migrate.request import MigrateRequest
    from crckpt.migrate.session import migrate as perform

    request = MigrateRequest(
        target=target,
        host=host,
        job=job,
        check=check,
        tcp=tcp.value if tcp else None,
        max_downtime_ms=None if max_downtime is None else options.parse_milliseconds(max_downtime, "--max-downtime"),
        abort_over=abort_over,
        max_rounds=max_rounds,
        options=RestoreOptions(
            tcp=tcp.value if tcp else None,
            allow_weaker=allow_weaker,
            preflight=not no_preflight,
            addresses=tuple(move_ip or ()),
        ),
        bandwidth=None if bandwidth is None else options.parse_bandwidth(bandwidth, "--bandwidth"),
        before_freeze=before_freeze,
        address_hook=address_hook,
        send_files=send_files,
        preflight=not no_preflight,
        other_program=other_program,
        remote_crckpt=remote_crckpt,
        remote_store=remote_store,
    )
    result = perform(request, context, _Report())
    emit("migrate", Output(_document(result), _lines(result), is_answer=check), as_json=as_json)


def _document(result: MigrateResult) -> dict[str, object]:
    return {
        "job": result.job,
        "host": result.host,
        "move": result.move,
        "pid": result.pid,
        "checkpoint": result.checkpoint,
        "rounds": result.rounds,
        "why_stopped": result.why_stopped,
        "sent_bytes": result.sent_bytes,
        "raw_bytes": result.raw_bytes,
        "downtime_ms": result.downtime_ms,
        "seconds": result.seconds,
        "over_budget": result.over_budget,
        "warnings": [str(finding) for finding in result.warnings],
    }


def _lines(result: MigrateResult) -> Iterator[str]:
    yield from note_lines(result.warnings)
    if result.pid is None:
        yield f"{result.job} can be moved to {result.host}\n"
        return
    if result.why_stopped:
        yield f"{count(len(result.rounds), 'round')}: {result.why_stopped}\n"
    over = ", over the budget of --max-downtime" if result.over_budget else ""
    yield (
        f"{result.job} runs on {result.host} as PID {result.pid}: downtime {duration(result.downtime_ms)}{over}; "
        f"{size(result.sent_bytes)} sent for {size(result.raw_bytes)} of images, "
        f"{duration(result.seconds * 1000)} in all\n"
    )
    assert result.checkpoint is not None
    yield f"its checkpoint is in both stores: {short_id(result.checkpoint)}\n"


def _move_document(move: Move) -> dict[str, object]:
    now = move.judge()
    return {
        "id": move.id,
        "job": move.job,
        "side": move.side,
        "peer": move.peer,
        "state": now.state,
        "is_over": now.is_over,
        "checkpoint": move.checkpoint,
        "began": move.began,
        "changed": move.changed,
        "why": now.why,
    }


def _move_lines(moves: tuple[Move, ...]) -> Iterator[str]:
    if not moves:
        yield "no job was moved to or from this store\n"
    for move in moves:
        now = move.judge()
        towards = "to" if move.side == "source" else "from"
        rest = f": {now.why}" if now.why else ""
        yield f"{move.id}  {move.job}  {towards} {move.peer}  {move.changed:%Y-%m-%d %H:%M}  {now.state}{rest}\n"


def _resume_document(found: ResumeResult) -> dict[str, object]:
    return {**_move_document(found.move), "runs_here": found.here, "pid": found.pid}


def _resume_lines(found: ResumeResult) -> Iterator[str]:
    move, pid = found.move, f" as PID {found.pid}" if found.pid is not None else ""
    there = move.peer
    if found.here:
        yield f"{move.job} runs here{pid}\n"
    elif move.side == "source":
        yield f"{move.job} runs on {there}{pid}\n"
    else:
        yield f"the move of {move.job} was given up; it runs on {there}\n"
