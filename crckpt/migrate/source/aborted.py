"""The error of a move that was aborted: it says what became of the program."""

from __future__ import annotations

import re
from typing import Final

from crckpt.causes import Finding
from crckpt.errors import CommandFailure, TargetNotRunning, TreeStopped
from crckpt.model import JobName, Pid

# Words of messages that already say so.
_RUNS: Final = ("runs on", "keeps running")

# What a dump says of a tree that runs. The checkpoints of the rounds were made.
_DUMP_RUNS: Final = re.compile(r"; (no checkpoint was made; |nothing was changed, )?the tree runs on$")


def remove_words_of_dump(message: str) -> str:
    """Remove from the message of a failed dump that the tree runs on: a move says that in its own words."""
    return _DUMP_RUNS.sub("", message)


def say_where_it_runs(error: CommandFailure, job: JobName, pid: Pid, failed_hook: Finding | None) -> CommandFailure:
    """Return an error of a move that was aborted, which says what became of the program."""
    message, hint = remove_words_of_dump(error.message), error.hint
    if isinstance(error, TargetNotRunning):
        message, hint = f"{job} (PID {pid}) ended while it was being moved; it was not moved", ""
    elif not isinstance(error, TreeStopped) and not any(words in message for words in _RUNS):
        message = f"{message}; {job} keeps running here"
    more = f"; {failed_hook.what}" if failed_hook is not None else ""
    return error.reword(f"{message}{more}", hint=hint)
