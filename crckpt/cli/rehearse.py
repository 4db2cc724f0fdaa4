"""`crckpt rehearse`."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.progress import shown
from crckpt.cli.render import Shown, count, duration, emit, moment, noted, short, summary
from crckpt.errors import RehearsalFailed, UsageError

if TYPE_CHECKING:
    from crckpt.ops.restore.rehearse import Ended, Rehearsed

_LONGEST_S = 24 * 3600


def rehearse(
    ref: options.Ref,
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long the tree is to run, unless its root ends.")
    ] = 2.0,
    probe: Annotated[
        str,
        typer.Option(
            "--probe",
            help="Then run this command in its network, mounts and PIDs, with the user, groups and capabilities of the "
            "program's root process, and no_new_privs; it must end with 0.",
            metavar="CMD",
        ),
    ] = "",
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Restore a checkpoint where it changes nothing, let it run, end it, and say how it went.

    It gets PIDs, mounts, a network without any link, IPC and memory of its own: what it writes is forgotten, its ports
    do not meet others, and its program may run on this host meanwhile. TCP connections are closed: their peers are not
    there. Not kept apart are devices, the clock, and the sockets of others that the tree was connected to (they are
    named). Ends with 25 if the tree does not come up, if a signal ends one of its processes, if its root ends with
    another status than 0, or if the probe does.

    `crckpt rehearse trainer` · `crckpt rehearse web --seconds 5 --probe 'curl -fsS http://127.0.0.1:8080/'`
    """
    from crckpt.ops.restore.rehearse import Request
    from crckpt.ops.restore.rehearse import rehearse as perform

    # Written so that it refuses what is no number (nan), too.
    if not 0 <= seconds <= _LONGEST_S:
        raise UsageError(f"--seconds {seconds:g} is not from 0 to {_LONGEST_S}", hint="crckpt rehearse --help")
    request = Request(ref, seconds, _words(probe))
    with shown("rehearsing", as_json=as_json) as progress:
        result = perform(request, options.context(store, criu=criu, config=config, progress=progress))
    emit("rehearse", _told(result), as_json=as_json)
    if result.failures:
        raise typer.Exit(RehearsalFailed.exit_code)


def _words(probe: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(probe))
    except ValueError as error:
        raise UsageError(f"--probe {probe}: {error}", hint="quote it as for a shell") from error


def _told(result: Rehearsed) -> Shown:
    checkpoint = result.checkpoint
    document = {
        "checkpoint": summary(checkpoint),
        "passed": not result.failures,
        "failures": result.failures,
        "came_up": True,
        "criu": result.criu.path,
        "criu_passed_over": result.criu.passed_over,
        "restore_ms": result.restore_ms,
        "ran_s": result.ran_s,
        "ended": result.ended,
        "probe": result.probe,
        "memory_limit": result.memory_limit,
        "closed_connections": result.closed,
        "warnings": [str(finding) for finding in result.warnings],
        "unwritable": result.unwritable,
        "not_isolated": {"devices": True, "sockets": result.sockets},
    }

    def text() -> Iterator[str]:
        yield from noted(result.criu.passed_over)
        yield from noted(result.warnings)
        yield from noted(_limits(result))
        for each in result.ended:
            yield f"process {each.pid} ({each.comm}) ended early {_how(each)}\n"
        for failure in result.failures:
            yield f"failed: {failure}\n"
        if result.probe is not None and result.probe.status != 0:
            yield from (f"  {line}\n" for line in result.probe.output.splitlines())
        named = f"{short(checkpoint.id)} ({checkpoint.job}, {moment(checkpoint.created)})"
        yield (
            f"{named} {'failed its rehearsal' if result.failures else 'can be restored'}: came up in "
            f"{duration(result.restore_ms)}, ran {duration(result.ran_s * 1000)}{_probe_said(result)}; "
            "nothing of it is left\n"
        )

    return Shown(document, text())


def _limits(result: Rehearsed) -> Iterator[str]:
    if result.closed:
        yield f"{count(result.closed, 'TCP connection')} closed: the peers are not there"
    if result.memory_limit is None:
        yield "memory was not limited: this host lets us make no control group"
    if result.unwritable:
        yield f"could not be written to, though a restore can: {', '.join(result.unwritable)}"
    reached = f", and the sockets {', '.join(result.sockets)}" if result.sockets else ""
    yield f"not kept apart: devices{reached}"


def _how(each: Ended) -> str:
    if each.status is None:
        return "in a way that only its parent knows"
    return f"with status {each.status}" if each.status >= 0 else f"by {_signal(-each.status)}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _probe_said(result: Rehearsed) -> str:
    return "" if result.probe is None or result.probe.status else ", the probe ended with 0"
