"""System calls are named as in the kernel's tables; crckpt's own short tables agree with them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crckpt.host.observe.tasks import parse_call
from crckpt.host.syscalls.ptrace_requests import call_name
from crckpt.host.syscalls.restarted_calls import RESTARTED_CALLS

NATIVE_STACK, COMPAT_STACK = 1 << 46, 1 << 31


@pytest.mark.parametrize(
    ("number", "machine", "is_native", "name"),
    [
        (202, "x86_64", True, "futex"),
        (202, "aarch64", True, "accept"),
        (240, "x86_64", False, "futex"),
        (422, "x86_64", False, "futex"),
        (441, "x86_64", True, "epoll_pwait2"),
        (999, "x86_64", True, "call 999"),
        (1, "s390", True, "call 1"),
    ],
)
def test_system_call_has_its_name_on_each_machine(number: int, machine: str, is_native: bool, name: str) -> None:
    assert call_name(number, machine, is_native=is_native) == name


@pytest.mark.parametrize(
    ("machine", "stack", "is_native"),
    [("x86_64", NATIVE_STACK, True), ("x86_64", COMPAT_STACK, False), ("aarch64", NATIVE_STACK, True)],
)
def test_numbers_of_system_calls_that_crckpt_warns_of_are_right(machine: str, stack: int, is_native: bool) -> None:
    # The arguments have a timeout and no flag for an absolute time, so crckpt warns of all its calls.
    lines = {number: f"{number} 0x0 0x0 0x0 0x1 0x0 0x0 {stack:#x} 0x0" for number in range(460)}
    named = {number: call for number, line in lines.items() if (call := parse_call(line, machine)[0])}
    assert len(named) > 5
    assert named == {number: call_name(number, machine, is_native=is_native) for number in named}


def test_numbers_of_system_calls_that_crckpt_restarts_are_right() -> None:
    numbers = {call.name: call.number for call in RESTARTED_CALLS if call.number >= 0}
    assert len(numbers) > 20
    assert numbers == {call_name(number, "x86_64"): number for number in numbers.values()}


def test_table_of_call_names_is_imported_only_when_a_name_is_asked_for() -> None:
    program = (
        "import sys; from crckpt.host.syscalls.ptrace_requests import call_name; print('ptrace' in sys.modules)\n"
        "call_name(0, 'x86_64'); print('ptrace' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]
