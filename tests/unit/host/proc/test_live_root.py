"""Detect whether CRIU holds the root of a tree."""

from __future__ import annotations

import os
import subprocess

import pytest
from other_user import NOBODY
from trees import PYTHON

from crckpt.host import proc
from crckpt.host.proc import identify_live_root

TRACING_PROGRAM = """
import ctypes, os, sys
child = os.fork()
if child == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
    print(os.getpid(), flush=True)
sys.stdin.read()
"""
"""A process that traces its child, whose PID it prints."""


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can start a program of another user")
@pytest.mark.parametrize("user", [0, NOBODY])
def test_program_traced_by_its_own_user_does_not_count_as_held_by_criu(user: int) -> None:
    """Only a tracer of root counts as CRIU: crckpt waits until CRIU releases the program, but not for a debugger."""
    with subprocess.Popen(
        [PYTHON, "-c", TRACING_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user
    ) as tracer:
        assert tracer.stdout is not None
        traced = proc.read_process(int(tracer.stdout.readline()))
        assert traced is not None
        assert traced.tracer == tracer.pid
        assert identify_live_root(traced).is_held() == (user == 0)
        tracer.communicate()
