"""System calls that are made again after a signal."""

from __future__ import annotations

import re

from checkout import PROJECT

from crckpt.host.syscalls.restarted_calls import RESTARTED_CALLS, SOCKET

SOURCE = PROJECT / "crckpt/tracking/preload/calls.c"


def test_library_restarts_the_same_calls() -> None:
    row = re.compile(r"^    \{(-?\d+), (-?\d+), (\w+)\}, +/\* (.+) \*/$", re.MULTILINE)
    found = row.findall(SOURCE.read_text())
    rows = [
        (name, int(number), int(compat), SOCKET if only == "SOCKET" else int(only))
        for number, compat, only, name in found
    ]
    assert rows == [(again.name, again.number, again.compat, again.only) for again in RESTARTED_CALLS]
