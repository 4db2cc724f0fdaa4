"""`crckpt migrate`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from crckpt.cli import migrate_all, migrate_output, options
from crckpt.cli.help import ADVANCED, CONNECTIONS, DOWNTIME, UNFINISHED, WHERE
from crckpt.cli.move_marks import move_document
from crckpt.cli.output import Output, emit
from crckpt.cli.progress import progress_bars
from crckpt.errors import UsageError
from crckpt.store.move_status import find_status
from crckpt.store.moves import read_all_moves

_MOST_ROUNDS: Final = 8


class Terminal(enum.StrEnum):
    """What a program gets instead of its terminal."""

    new = "new"
    null = "null"


def migrate(
    target: Annotated[
        str | None,
        typer.Argument(
            help="PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root, or a job that runs.", metavar="TARGET"
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Argument(help="The other host, as for ssh: [USER@]HOST, or ssh://[USER@]HOST:PORT.", metavar="HOST"),
    ] = None,
    job: options.Job = None,
    everything: migrate_all.Everything = False,
    at_once: migrate_all.AtOnce = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check both hosts, show what would be sent, move nothing."),
    ] = False,
    send_files: Annotated[
        bool,
        typer.Option(
            "--send-files",
            help="Send files that the program only reads or runs, and its logs, if the other host lacks them.",
        ),
    ] = False,
    tcp: Annotated[
        options.TcpConnections | None,
        typer.Option(
            "--tcp",
            help="Established TCP connections: **keep** them (their address must move too) or **close** them.",
            metavar="keep|close",
            show_default="refuse if there are any",
            rich_help_panel=CONNECTIONS,
        ),
    ] = None,
    move_ip: Annotated[
        list[str] | None,
        typer.Option(
            "--move-ip",
            help="Move this address too (10.0.0.7/24@eth0, or @eth0:ens3 if that is its name there). Can be repeated.",
            metavar="ADDR",
            rich_help_panel=CONNECTIONS,
        ),
    ] = None,
    before_freeze: Annotated[
        str,
        typer.Option(
            "--before-freeze",
            help="Run this shell command before the last freeze (to drain the program).",
            metavar="CMD",
            show_default=False,
            rich_help_panel=CONNECTIONS,
        ),
    ] = "",
    address_hook: Annotated[
        str,
        typer.Option(
            "--address-hook",
            help="Run this shell command to move the address by other means (a load balancer, a cloud).",
            metavar="CMD",
            show_default=False,
            rich_help_panel=CONNECTIONS,
        ),
    ] = "",
    tty: Annotated[
        Terminal | None,
        typer.Option(
            "--tty",
            metavar="new|null",
            help="What the program gets there instead of its terminal here. **new**: a new terminal, to which "
            "`crckpt attach` connects yours. **null**: nothing; its output is lost, its input is empty.",
            show_default="refuse if it needs one",
        ),
    ] = None,
    max_downtime: Annotated[
        str | None,
        typer.Option(
            "--max-downtime",
            help="The longest downtime that you want (300ms, 2s). If rounds cannot reach it, the program is moved "
            "anyway.",
            show_default="until little is left",
            metavar="TIME",
            rich_help_panel=DOWNTIME,
        ),
    ] = None,
    max_rounds: Annotated[
        int,
        typer.Option(
            "--max-rounds",
            min=1,
            help="Copy memory in at most this many rounds.",
            metavar="N",
            rich_help_panel=DOWNTIME,
        ),
    ] = _MOST_ROUNDS,
    abort_over: Annotated[
        bool,
        typer.Option(
            "--abort-over",
            help="With --max-downtime: in that case, do not move it.",
            rich_help_panel=DOWNTIME,
        ),
    ] = False,
    lazy: Annotated[
        bool,
        typer.Option(
            "--lazy",
            help="Start the program there before its memory is sent (post-copy). If the connection is lost then, it "
            "ends.",
            rich_help_panel=DOWNTIME,
        ),
    ] = False,
    local_lazy: Annotated[
        bool,
        typer.Option(
            "--local-lazy",
            help="Start the program there before its memory is filled from the store there.",
            rich_help_panel=DOWNTIME,
        ),
    ] = False,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            "--bandwidth",
            help="Send at most this many bytes per second (800K, 50M).",
            metavar="SPEED",
            rich_help_panel=DOWNTIME,
        ),
    ] = None,
    bandwidth_clock: Annotated[
        Path | None,
        typer.Option(
            "--bandwidth-clock", help="Share --bandwidth with other moves (`--all`).", metavar="FILE", hidden=True
        ),
    ] = None,
    list_moves: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List moves: where each program is, what to type next.",
            rich_help_panel=UNFINISHED,
        ),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Finish the interrupted move with this id. On the wrong host, crckpt names the right one.",
            metavar="MOVE",
            rich_help_panel=UNFINISHED,
        ),
    ] = None,
    source_is_gone: Annotated[
        bool,
        typer.Option(
            "--source-is-gone",
            help="With --resume, on the destination: the source will never run again. If it does, the program "
            "could run twice.",
            rich_help_panel=UNFINISHED,
        ),
    ] = False,
    remote_crckpt: Annotated[
        str,
        typer.Option(
            "--remote-crckpt",
            help="The command that runs crckpt on the other host: a path, or 'sudo crckpt'.",
            metavar="CMD",
            rich_help_panel=WHERE,
        ),
    ] = "crckpt",
    remote_store: Annotated[
        str | None,
        typer.Option(
            "--remote-store",
            help="The store on the other host.",
            metavar="DIR",
            show_default="that of crckpt there",
            rich_help_panel=WHERE,
        ),
    ] = None,
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    allow_weaker: Annotated[
        bool,
        typer.Option(
            "--allow-weaker",
            help="Move the program even if it will be less protected there than here.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    no_preflight: options.NoPreflight = False,
    other_program: options.OtherProgram = False,
    as_json: options.AsJson = False,
) -> None:
    """Move a running process and all its descendants to another host, over ssh.

    This is live migration: memory is copied while the program runs, then the program is frozen, the rest is copied, and
    it continues there. If that fails, it keeps running here. It never runs on both hosts. If the connection is lost
    when it has already ended here, crckpt connects again, or prints what to type later (exit code 31). Both hosts need
    crckpt, and root.

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
        refused = (("JOB", job), ("--move-ip", move_ip), ("--list", list_moves), ("--resume", resume))
        target, host = "", migrate_all.check_words(target, host, refused)
    elif at_once is not None:
        raise UsageError("--at-once needs --all", hint="for example: crckpt migrate --all root@node2 --at-once 4")
    context = options.make_context(store, criu=criu, config=config)
    if list_moves:
        records, unreadable = read_all_moves(context.repository().backend)
        moves = tuple(map(find_status, records))
        document: dict[str, object] = {"moves": tuple(map(move_document, moves)), "unreadable": unreadable}
        lines = migrate_output.move_lines(moves, unreadable)
        emit("migrate", Output(document, lines, is_answer=True), as_json=as_json)
        return
    if resume is not None:
        from crckpt.migrate.session import resume as perform_resume

        ended = perform_resume(resume, context, source_is_gone=source_is_gone)
        document = migrate_output.resume_document(ended)
        emit("migrate", Output(document, migrate_output.resume_lines(ended)), as_json=as_json)
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

    from crckpt.migrate.request import MigrateRequest
    from crckpt.migrate.session import migrate as perform
    from crckpt.migrate.wire.messages import RestoreOptions

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
            tty=tty.value if tty else None,
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
        preflight=not no_preflight,
        other_program=other_program,
        remote_crckpt=remote_crckpt,
        remote_store=remote_store,
    )
    if everything:
        migrate_all.migrate_all(request, context, config, at_once, as_json=as_json)
        return
    # ssh may ask for a password first.
    with progress_bars("copying", "storing", "sending", as_json=as_json, waits=True) as bars:
        result = perform(request, context, migrate_output.ProgressLines(*bars))
    document, lines = migrate_output.result_document(result), migrate_output.result_lines(result, remote_crckpt)
    emit("migrate", Output(document, lines, is_answer=check), as_json=as_json)


def _choose_lazy(*, lazy: bool, local_lazy: bool) -> Literal["source", "local"] | None:
    if lazy and local_lazy:
        raise UsageError("--lazy cannot be combined with --local-lazy", hint="choose one of them")
    return "source" if lazy else "local" if local_lazy else None
