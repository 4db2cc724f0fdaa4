"""Which calls a dump interrupts, as /proc tells of them; and that the library and we know of the same."""

from __future__ import annotations

import re

import pytest
from places import PROJECT

from crckpt.host.observe.tasks import RESTARTED, parse_call
from crckpt.host.syscalls.restarts import RESTARTED_CALLS, SOCKET

SOURCE = PROJECT / "crckpt/tracking/preload/calls.c"
STACK, STACK_32 = "0x7ffd00001000 0x7f0000001000", "0xffd01000 0xf7f01549"


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("running\n", ""),
        (f"-1 {STACK}\n", ""),
        (f"7 0x7f00 0x1 0xffffffff 0x0 0x0 0x0 {STACK}\n", "poll"),
        (f"202 0x7f00 0x80 0x0 0x7f10 0x0 0x0 {STACK}\n", "futex"),
        (f"202 0x7f00 0x80 0x0 0x0 0x0 0x0 {STACK}\n", ""),
        (f"230 0x1 0x0 0x7f00 0x0 0x0 0x0 {STACK}\n", "clock_nanosleep"),
        (f"230 0x1 0x1 0x7f00 0x0 0x0 0x0 {STACK}\n", ""),
        (f"219 0x7f00 0x1 0xffffffff 0x0 0x0 0x0 {STACK}\n", RESTARTED),
        (f"0 0x0 0x7f00 0x1 0x0 0x0 0x0 {STACK}\n", ""),
        (f"0 0x8000 0x0 0x0 0x0 0x0 0x0 {STACK_32}\n", RESTARTED),
        (f"168 0x8000 0x1 0x64 0x0 0x0 0x0 {STACK_32}\n", "poll"),
    ],
)
def test_calls_that_criu_alone_would_interrupt(said: str, call: str) -> None:
    assert parse_call(said, "x86_64")[0] == call


def test_on_other_machines_only_what_the_kernel_interrupts() -> None:
    assert parse_call(f"22 0x4 0x7f00 0x1 0xffffffff 0x0 0x0 {STACK}\n", "aarch64")[0] == "epoll_pwait"
    assert parse_call(f"98 0x7f00 0x80 0x0 0x7f10 0x0 0x0 {STACK}\n", "aarch64")[0] == ""
    assert parse_call(f"7 0x7f00 0x1 0xffffffff 0x0 0x0 0x0 {STACK}\n", "riscv64")[0] == ""


def test_the_library_makes_the_same_calls_again() -> None:
    row = re.compile(r"^    \{(-?\d+), (-?\d+), (\w+)\}, +/\* (.+) \*/$", re.MULTILINE)
    found = row.findall(SOURCE.read_text())
    rows = [
        (name, int(number), int(compat), SOCKET if only == "SOCKET" else int(only))
        for number, compat, only, name in found
    ]
    assert rows == [(again.name, again.number, again.compat, again.only) for again in RESTARTED_CALLS]
