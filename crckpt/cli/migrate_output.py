"""Moves as text for people and as documents for scripts: what `crckpt migrate` prints, and `list` and `show`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from crckpt.cli.format import count, duration, local_time, note_lines, short_id, size
from crckpt.cli.output import pick, print_progress
from crckpt.store.move_status import MoveStatus, find_status
from crckpt.store.moves import UnreadableMove

if TYPE_CHECKING:
    from crckpt.migrate.request import MigrateResult, RoundSummary
    from crckpt.migrate.resume import ResumeResult

_MOST_FILES_SHOWN: Final = 20
_UNDECIDED: Final = {
    "ended": "it has ended here, and {peer} has not confirmed that it runs there",
    "prepared": "only {peer} knows where it runs",
    "committed": "it has ended on {peer}, and does not run here yet",
}


def describe_move(status: MoveStatus) -> str:
    """Describe a move in a few words."""
    move = status.move
    if move.is_over:
        return f"moved to {move.peer}" if move.side == "source" else f"runs on {move.peer}"
    direction = f"to {move.peer}" if move.side == "source" else f"here from {move.peer}"
    return f"being moved {direction}" if status.crckpt_pid is not None else f"unfinished move {direction}"


def move_document(status: MoveStatus) -> dict[str, object]:
    """The document of a recorded move."""
    return {
        **pick(status.move, "id", "job", "side", "peer", "state", "is_over", "checkpoint", "began", "changed", "why"),
        **pick(status, "runs_on", "crckpt_pid", "next_on", "next_command"),
    }


def print_round(number: int, summary: RoundSummary) -> None:
    """Print what a round has copied."""
    rate = summary.written_per_s
    written = f"dirty rate {size(round(rate))}/s; " if rate is not None else ""
    print_progress(
        f"round {number}: copied {size(summary.raw_bytes)}, sent {size(summary.sent_bytes)} in "
        f"{duration(summary.seconds * 1000)}, frozen {duration(summary.frozen_ms)}; {written}"
        f"estimated downtime {duration(summary.estimated_ms)}"
    )


def result_document(result: MigrateResult) -> dict[str, object]:
    """The document of a move, or of a check."""
    return {
        **pick(result, "job", "host", "move", "pid", "checkpoint", "rounds", "why_stopped", "sent_bytes", "raw_bytes"),
        **pick(result, "downtime_ms", "seconds", "over_budget", "memory_bytes", "to_send"),
        "check": result.is_check,
        "runs_on": "source" if result.is_check else "destination",
        "warnings": list(map(str, result.warnings)),
        "terminal": {"log": result.terminal_log} if result.terminal_log else None,
    }


def result_lines(result: MigrateResult, remote_crckpt: str = "crckpt") -> Iterator[str]:
    """The text of a move, or of a check. `remote_crckpt`: crckpt on the other host."""
    yield from note_lines(result.warnings)
    if result.is_check:
        for file in result.to_send[:_MOST_FILES_SHOWN]:
            yield f"would send {file.path} ({size(file.bytes)})\n"
        if (more := len(result.to_send) - _MOST_FILES_SHOWN) > 0:
            yield f"would send {count(more, 'more file')}\n"
        memory = f"{size(result.memory_bytes)} of memory to send, before compression"
        yield f"{result.job} can be moved to {result.host}: it has {memory}\n"
        return
    pid = f" as PID {result.pid}" if result.pid is not None else ""
    if result.downtime_ms is None:
        yield f"{result.job} runs on {result.host}{pid}; the connection was lost, so the downtime is not known\n"
        yield from _terminal_lines(result.job, result.terminal_log, result.host, remote_crckpt)
        return
    if result.why_stopped:
        yield f"no more rounds after {len(result.rounds)}: {result.why_stopped}\n"
    over = ", over the budget of --max-downtime" if result.over_budget else ""
    yield (
        f"{result.job} runs on {result.host}{pid}: downtime {duration(result.downtime_ms)}{over}; "
        f"{size(result.sent_bytes)} sent for {size(result.raw_bytes)} of images, "
        f"{duration(result.seconds * 1000)} in all\n"
    )
    yield from _terminal_lines(result.job, result.terminal_log, result.host, remote_crckpt)
    assert result.checkpoint is not None
    yield f"its checkpoint is in both stores: {short_id(result.checkpoint)}\n"


def _terminal_lines(job: str, log: str, host: str, remote_crckpt: str = "crckpt") -> Iterator[str]:
    """Say how to connect to the new terminal of a program that was moved to `host`, if it has one."""
    if log:
        attach = f"ssh -t {shlex.quote(host)} {remote_crckpt} attach {shlex.quote(job)}"
        yield f"connect to its terminal: {attach}; its output there: {log}\n"


def move_lines(moves: tuple[MoveStatus, ...], unreadable: tuple[UnreadableMove, ...]) -> Iterator[str]:
    """The list of recorded moves."""
    for bad in unreadable:
        yield f"{bad.why}\n  hint: {bad.remedy}\n"
    for status in moves:
        move = status.move
        direction = "to" if move.side == "source" else "from"
        yield f"{move.id}  {local_time(move.changed)}  {move.job} {direction} {move.peer}: {_describe(status)}\n"
        if status.next_command:
            there = "" if status.next_on == move.side else f" on {move.peer}"
            aim = "remove what the other host keeps of it" if move.is_unreported else "finish the move"
            yield f"  hint: {aim}{there}: {status.next_command}\n"
    if not moves and not unreadable:
        yield "no job was moved to or from this store\n"


def _describe(status: MoveStatus) -> str:
    """Say where the program runs."""
    move = status.move
    if status.crckpt_pid is not None:
        return f"crckpt (PID {status.crckpt_pid}) is moving it"
    if move.is_replaced:
        return f"it was aborted, and {move.peer} does not know it: {move.why}"
    if status.runs_on is None:
        return _UNDECIDED.get(move.state, "it may run on neither host").format(peer=move.peer)
    place = "it runs here" if status.runs_on == move.side else f"it runs on {move.peer}"
    if status.has_ended and move.root is not None:
        place = f"it ran here as PID {move.root.pid}, which has ended"
    return f"{place}; the move was aborted: {move.why}" if move.why else place


def resume_document(result: ResumeResult) -> dict[str, object]:
    """The document of a move that was finished."""
    terminal = {"log": result.terminal_log} if result.terminal_log else None
    return {**move_document(find_status(result.move)), "pid": result.pid, "terminal": terminal}


def resume_lines(result: ResumeResult) -> Iterator[str]:
    """The text of a move that was finished."""
    move, pid = result.move, f" as PID {result.pid}" if result.pid is not None else ""
    if move.is_replaced:
        yield f"the move of {move.job} to {move.peer} was aborted, and nothing is left of it there\n"
        return
    if result.runs_here:
        aborted = ": the move was aborted" if move.side == "source" else ""
        yield f"{move.job} runs here{pid}{aborted}\n"
    elif move.side == "source":
        yield f"{move.job} runs on {move.peer}{pid}\n"
    else:
        yield f"{move.job} runs on {move.peer}: the move was aborted\n"
    if move.side == "source" and not result.runs_here:
        yield from _terminal_lines(move.job, result.terminal_log, move.peer, *move.remote[:1])
    elif result.terminal_log:
        yield f"connect to its terminal: crckpt attach {shlex.quote(move.job)}; its output: {result.terminal_log}\n"
