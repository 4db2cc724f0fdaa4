"""The error of a move that was aborted: it says what became of the program."""

from __future__ import annotations

from typing import Final

from crckpt.causes import Finding
from crckpt.errors import NOT_MADE, TREE_RUNS, UNCHANGED, CommandFailure, TargetNotRunning, TreeStopped
from crckpt.model import JobName, Pid

# What a dump says of a tree that runs. The checkpoints of the rounds were made.
_OF_DUMP: Final = (TREE_RUNS, NOT_MADE, UNCHANGED)


def explain_abort(error: CommandFailure) -> str:
    """Say why a move was aborted, without what a dump says of a tree that runs on."""
    return error.what if error.state in _OF_DUMP else error.message


def say_where_it_runs(error: CommandFailure, job: JobName, pid: Pid, failed_hook: Finding | None) -> CommandFailure:
    """Return an error of a move that was aborted, which says what became of the program."""
    if isinstance(error, TargetNotRunning):
        ended = f"{job} (PID {pid}) ended while it was being moved; it was not moved"
        error = error.reword(ended, state="", hint="")
    elif error.state in _OF_DUMP or not (error.state or isinstance(error, TreeStopped)):
        error = error.reword(state=f"{job} keeps running here")
    return error if failed_hook is None else error.reword(error.message, state=failed_hook.what)
