"""`crckpt restore`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import typer

from crckpt.cli import options
from crckpt.cli.format import duration, note_lines, short_id, title
from crckpt.cli.help import ADVANCED
from crckpt.cli.output import checkpoint_document, criu_document, emit, form, pick
from crckpt.cli.progress import progress_bars
from crckpt.errors import CrckptError, UsageError
from crckpt.host.process.job_control import end_by_signal
from crckpt.ops.restore.attempt import RestoreResult
from crckpt.ops.restore.foreground import wait_for_program
from crckpt.ops.restore.request import RestoreRequest
from crckpt.ops.restore.restore import restore as perform
from crckpt.preflight.restore.host import Grown, Written


def restore(
    ref: str = options.REF,
    detach: bool = options.flag("--detach -d", "Return when the tree runs; do not stay its parent."),
    tcp: options.Tcp | None = options.option(
        "--tcp keep|close",
        "Established TCP connections: **keep** them or **close** them.",
        shown="as chosen for the dump",
    ),
    dry_run: bool = options.flag("--dry-run", "Check whether it would work; do nothing."),
    or_older: bool = options.flag(
        "--or-older", "If the checkpoint is damaged or cannot be restored here, take the next older one of its job."
    ),
    despite_move: bool = options.flag(
        "--despite-move", "The program was moved to another host, and no longer runs there: restore it here.", ADVANCED
    ),
    new_pid_namespace: bool = options.flag(
        "--new-pid-namespace", "Restore into a new PID namespace, if the tree's PIDs are in use on this host.", ADVANCED
    ),
    grown: Grown = options.option(
        "--grown refuse|keep|rewind",
        "What to do if open files grew since the checkpoint, or logs were rotated. **refuse**: do not restore. "
        "**keep**: leave them as they are (only for logs that the program appends to). **rewind**: cut them to their "
        "old size; what is cut off goes into a file next to each. crckpt never cuts a file that another process is "
        "writing, or that is not the same file as at the checkpoint.",
        ADVANCED,
        default="refuse",
    ),
    written: Written = options.option(
        "--written refuse|keep",
        "What to do if files that the program writes in place were written since the checkpoint: its memory and the "
        "files may disagree. **refuse**: do not restore. **keep**: leave them as they are.",
        ADVANCED,
        default="refuse",
    ),
    tty: str | None = options.option(
        "--tty new|null|FILE",
        "What the program gets instead of the terminal on which it was started. **new**: a new terminal, to which "
        "`crckpt attach` connects yours. **null**: nothing; its output is lost, its input is empty. **FILE**: its "
        "output is appended to this file, its input is empty.",
        shown="the terminal of this command",
    ),
    no_preflight: bool = options.NO_PREFLIGHT,
    allow_weaker: bool = options.flag(
        "--allow-weaker",
        "Restore the program even if it will be less confined than before (Landlock, a cgroup namespace, limits of "
        "its control group). crckpt names what is weaker.",
        ADVANCED,
    ),
    staging: Path | None = options.RESTORE_STAGING,
    verbose: bool = options.VERBOSE,
) -> None:
    """Bring a checkpointed tree back to life.

    Without **--detach** crckpt stays the parent of the program, passes signals on to it (except signals that were
    ignored when crckpt was started, for example by `nohup`), and exits with the program's own exit status. At a prompt
    the program is a job of the shell: ^C, ^Z, `fg` and `bg` work.
    crckpt first checks what would make the restore fail. If it fails all the same, nothing is left behind, and you can
    try it again.

    For example:

        crckpt restore trainer --detach
        crckpt restore trainer~1
        crckpt restore trainer:before-upgrade
        crckpt restore editor --tty new --detach
    """
    request = RestoreRequest(
        ref=ref,
        detach=detach,
        tcp=tcp,
        dry_run=dry_run,
        or_older=or_older,
        despite_move=despite_move,
        new_pid_namespace=new_pid_namespace,
        grown=grown,
        written=written,
        preflight=not no_preflight,
        allow_weaker=allow_weaker,
        # Python has no sys.stdin if descriptor 0 was closed.
        terminal=0 if sys.stdin is not None and sys.stdin.isatty() else None,
        output=2 if form.as_json else 1,  # with --json, stdout has the document and nothing else
        tty="ours" if tty is None else "new" if tty == "new" else "null" if tty == "null" else "file",
        tty_file=Path(tty) if tty not in (None, "new", "null") else None,
    )
    if tty == "":
        raise UsageError("--tty needs new, null or the path of a file", hint="for example: --tty new")
    options.require_root("to restore a checkpoint")
    with progress_bars("restoring", program_follows=True) as (progress,):

        def announce(restored: RestoreResult) -> None:
            # As after the last byte: removes the bar.
            progress(1, 1)
            # stdout is the program's. The program needs us as its parent even if this cannot be printed.
            with suppress(CrckptError):
                emit(None, _lines(restored, verbose=verbose), to_stderr=True)

        context = options.make_context(staging=staging, progress=progress)
        result = perform(request, context) if form.as_json else perform(request, context, announce)
    if detach or dry_run:
        emit(_document(result), _lines(result, verbose=verbose), is_answer=dry_run)
        return
    # With --json the only document comes after this, because it has the program's status.
    end = wait_for_program(result)
    if form.as_json:
        emit(_document(result, program_status=end.status), "")
    elif end.signal and request.terminal is not None:
        end_by_signal(end.signal)
    raise typer.Exit(end.status)


def _document(result: RestoreResult, *, program_status: int | None = None) -> dict[str, object]:
    return {
        **pick(result, "pid", "restore_ms", "command"),
        **criu_document(result.criu),
        "checkpoint": checkpoint_document(result.checkpoint),
        "dry_run": result.pid is None,
        "warnings": list(map(str, result.verdict.warnings)),
        # An old name, which programs read.
        "passed_over": [pick(bad, "id", "reason") for bad in result.skipped],
        "program_status": program_status,
        "terminal": None if result.holder is None else {"log": result.holder.log, "holder": result.holder.pid},
    }


def _lines(result: RestoreResult, *, verbose: bool) -> Iterator[str]:
    for bad in result.skipped:
        yield f"skipped: {bad.reason}\n" if bad.is_named else f"skipped {short_id(bad.id)}: {bad.reason}\n"
    yield from note_lines(result.criu.passed_over)
    yield from note_lines(result.verdict.warnings)
    if verbose:
        yield f"{shlex.join(result.command)}\n"
    if result.pid is None:
        yield f"{title(result.checkpoint)} can be restored\n"
        # Reading it may take minutes.
        yield f"its data was not read; to check it: crckpt verify {short_id(result.checkpoint.id)}\n"
    else:
        inner = f" (PID {result.inner_pid} in its namespace)" if result.inner_pid is not None else ""
        yield f"restored {title(result.checkpoint)} as PID {result.pid}{inner} in {duration(result.restore_ms)}\n"
    if result.holder is not None:
        yield f"connect to its terminal: crckpt attach {result.checkpoint.job}; its output: {result.holder.log}\n"
