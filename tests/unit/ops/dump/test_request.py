"""Requests of a dump, and contradictory options."""

from __future__ import annotations

import pytest

from crckpt.errors import UsageError
from crckpt.ops.dump.request import DumpRequest, PreCopy


@pytest.mark.parametrize(
    ("request_", "option"),
    [
        (DumpRequest("1", stop=True, asynchronous=True), "--async"),
        (DumpRequest("1", pre_copy=PreCopy(3), incremental=False), "--no-incremental"),
    ],
)
def test_contradictory_options_of_a_dump_are_refused(request_: DumpRequest, option: str) -> None:
    with pytest.raises(UsageError, match=option) as caught:
        request_.check()
    assert caught.value.hint


def test_second_pid_is_not_a_job_name() -> None:
    """$(pgrep python3) may print several PIDs."""
    with pytest.raises(UsageError, match=r"^1 is a PID, and would become the name of the job$"):
        DumpRequest("5", "1").check()
    DumpRequest("5", "4194305").check()  # no PID is as high
    DumpRequest("unit:app", "1").check()


@pytest.mark.parametrize(
    ("request_", "wants", "allows"),
    [
        (DumpRequest("1"), None, True),
        (DumpRequest("1", incremental=False), False, True),
        (DumpRequest("1", incremental=True), True, True),
        (DumpRequest("1", pre_copy=PreCopy(3, 10.0)), True, True),
        (DumpRequest("1", pre_copy=PreCopy(3, 10.0, abort_over=True)), True, False),
    ],
)
def test_dump_options_determine_if_a_tracker_is_used_and_a_long_freeze_is_allowed(
    request_: DumpRequest, wants: bool | None, allows: bool
) -> None:
    request_.check()
    assert (request_.wants_tracker, request_.allows_long_freeze) == (wants, allows)
