"""`crckpt migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import typer

from crckpt.cli import migrate_all, migrate_output, options
from crckpt.cli.help import ADVANCED, CONNECTIONS, DOWNTIME, UNFINISHED, WHERE
from crckpt.cli.migrate_output import move_document
from crckpt.cli.output import emit, print_progress
from crckpt.cli.progress import progress_bars
from crckpt.errors import UsageError
from crckpt.model import MoveId
from crckpt.store.move_status import find_status
from crckpt.store.moves import read_all_moves

_MOST_ROUNDS: Final = 8


def migrate(
    parsed: typer.Context,
    target: str | None = options.argument(
        "TARGET", "PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root, or a job that runs.", default=None
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
        shown="until little is left",
    ),
    max_rounds: int = options.option(
        "--max-rounds N", "Copy memory in at most this many rounds.", DOWNTIME, default=_MOST_ROUNDS, min=1
    ),
    abort_over: bool = options.flag("--abort-over", "With --max-downtime: in that case, do not move it.", DOWNTIME),
    lazy: bool = options.flag(
        "--lazy",
        "Start the program there before its memory is sent (post-copy). If the connection is lost then, it ends.",
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
        "With --resume, on the destination: the source will never run again. If it does, the program could run twice.",
        UNFINISHED,
    ),
    remote_crckpt: str = options.option(
        "--remote-crckpt CMD",
        "The command that runs crckpt on the other host: a path, or 'sudo crckpt'.",
        WHERE,
        default="crckpt",
    ),
    remote_store: str | None = options.option(
        "--remote-store DIR", "The store on the other host.", WHERE, shown="that of crckpt there"
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
        refused = (("--move-ip", move_ip), ("--list", list_moves), ("--resume", resume))
        target, host = "", migrate_all.check_words(target, host, refused)
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
        tcp=tcp,
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
        preflight=not no_preflight,
        other_program=other_program,
        remote_crckpt=remote_crckpt,
        remote_store=remote_store,
    )
    if everything:
        migrate_all.migrate_all(request, context, parsed, at_once)
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
