"""`crckpt rehearse`."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

from crckpt.cli import options
from crckpt.cli.format import count, duration, note_lines, title
from crckpt.cli.output import checkpoint_document, criu_document, emit, pick
from crckpt.cli.progress import progress_bars
from crckpt.errors import RehearsalFailed, UsageError
from crckpt.ops.restore.rehearse import RehearsalResult
from crckpt.ops.restore.rehearse import rehearse as perform
from crckpt.ops.restore.request import RehearsalRequest

_LONGEST_S = 24 * 3600


def rehearse(
    ref: str = options.REF,
    seconds: float = options.option("--seconds N", "How long to let the tree run, unless its root ends.", default=2.0),
    probe: str = options.option(
        "--probe CMD",
        "After that time, run this command in the tree's network, mounts and PIDs. It must exit with 0. It has the "
        "user, groups and capabilities of the tree's root process, and no_new_privs.",
        default="",
    ),
    staging: Path | None = options.RESTORE_STAGING,
) -> None:
    """Try out a restore: restore a checkpoint in isolation, let it run for a while, end it, and report.

    The tree gets its own PIDs, mounts, IPC and memory, and a network that leads nowhere. What it writes is discarded,
    and the program itself may run on this host at the same time. TCP connections are closed, because the other side is
    not there. Devices, the clock and sockets of other programs are not isolated: the tree can really change these, and
    crckpt names the sockets. Exits with 25 if the tree does not start, if a signal ends one of its processes, or if its
    root or the probe exits with a nonzero status.

    For example:

        crckpt rehearse trainer
        crckpt rehearse web --seconds 5 --probe 'curl -fsS http://127.0.0.1/'
    """
    if not 0 <= seconds <= _LONGEST_S:  # not `or`: this refuses nan, too
        raise UsageError(
            f"--seconds must be between 0 and {_LONGEST_S}, not {seconds:g}", hint="for example: --seconds 5"
        )
    try:
        # Words are split as a shell does it, but no shell runs them.
        words = tuple(shlex.split(probe))
    except ValueError as error:
        raise UsageError(f"--probe {probe}: {error}", hint="quote it as in a shell") from error
    options.require_root("to rehearse a restore")
    with progress_bars("rehearsing") as (progress,):
        context = options.make_context(staging=staging, progress=progress)
        result = perform(RehearsalRequest(ref, seconds, words), context)
    failure = None
    if result.failures:
        failure = RehearsalFailed(f"{title(result.checkpoint)} failed its rehearsal", causes=result.failures)
    document = {
        **pick(result, "failures", "restore_ms", "ran_s", "ended", "probe", "memory_limit", "unwritable"),
        **criu_document(result.criu),
        "checkpoint": checkpoint_document(result.checkpoint),
        "passed": not result.failures,
        # If the tree does not start, that is an error, which has no such document.
        "came_up": True,
        "closed_connections": result.closed,
        "warnings": list(map(str, result.warnings)),
        "not_isolated": {"devices": True, "sockets": result.sockets},
    }
    emit(document, _lines(result), is_answer=failure is not None, failure=failure)


def _lines(result: RehearsalResult) -> Iterator[str]:
    yield from note_lines(result.criu.passed_over)
    yield from note_lines(result.warnings)
    if result.closed:
        yield f"note: {count(result.closed, 'TCP connection')} closed: the other side is not there\n"
    if result.memory_limit is None:
        yield "note: its memory was not limited, because crckpt cannot make a control group on this host\n"
    if result.unwritable:
        yield f"note: read-only in a rehearsal, but not in a restore: {', '.join(result.unwritable)}\n"
    reached = f", and the sockets {', '.join(result.sockets)}" if result.sockets else ""
    yield f"note: not isolated: devices{reached}\n"
    yield from (f"process {each.pid} ({each.comm}) ended early {_ending(each.status)}\n" for each in result.ended)
    yield from (f"failed: {failure}\n" for failure in result.failures)
    if result.probe is not None and result.probe.output:
        yield "the probe printed:\n"
        yield from (f"  | {line}\n" for line in result.probe.output.splitlines())
    verdict = "failed its rehearsal" if result.failures else "can be restored"
    probed = "" if result.probe is None or result.probe.status else ", the probe exited with 0"
    yield (
        f"{title(result.checkpoint)} {verdict}: started in {duration(result.restore_ms)}, "
        f"ran for {duration(result.ran_s * 1000)}{probed}; nothing of it is left\n"
    )


def _ending(status: int | None) -> str:
    if status is None:
        return "(only its parent knows its status)"
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
