"""The errors of aborted moves tell where the program is."""

from __future__ import annotations

import pytest

from crckpt.causes import cause
from crckpt.errors import (
    NOT_MADE,
    UNCHANGED,
    CommandFailure,
    DumpFailed,
    Interrupted,
    PreflightRefused,
    RemoteError,
    TargetNotRunning,
    TreeStopped,
)
from crckpt.migrate.source.move import say_where_it_runs
from crckpt.model import JobName

_INTERRUPTED = "interrupted by SIGINT; app keeps running here"
_ENDED = "app (PID 812) ended while it was being moved; it was not moved"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RemoteError("db2: no space is left"), "db2: no space is left; app keeps running here"),
        (Interrupted("interrupted by SIGINT"), "interrupted by SIGINT; app keeps running here"),
        (PreflightRefused("/srv/x is missing"), "/srv/x is missing; app keeps running here"),
        (DumpFailed("no", state=NOT_MADE), "no; app keeps running here"),
        (Interrupted("interrupted by SIGINT", state=UNCHANGED), _INTERRUPTED),
        (
            DumpFailed("no", state="the tree keeps running without 9, which has ended"),
            "no; the tree keeps running without 9, which has ended",
        ),
        (PreflightRefused("over", state="the program keeps running here"), "over; the program keeps running here"),
        (TreeStopped("the tree is gone"), "the tree is gone"),
        (TargetNotRunning("there is no process 812"), _ENDED),
    ],
)
def test_error_of_an_aborted_move_says_where_the_program_is(error: CommandFailure, message: str) -> None:
    reported = say_where_it_runs(error, JobName("app"), 812, None)
    assert (type(reported), reported.message, reported.exit_code) == (type(error), message, error.exit_code)
    late = say_where_it_runs(error, JobName("app"), 812, cause("address-hook").finding())
    assert late.message == f"{message}; --address-hook failed"


def test_hint_of_an_aborted_move_is_kept_unless_the_program_has_ended() -> None:
    assert say_where_it_runs(RemoteError("x", hint="try"), JobName("app"), 812, None).hint == "try"
    assert say_where_it_runs(TargetNotRunning("x", hint="find its PID"), JobName("app"), 812, None).hint == ""
