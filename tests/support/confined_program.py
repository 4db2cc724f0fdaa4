"""A program that may be confined by Landlock, and answers a question from inside."""

from __future__ import annotations

import os

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter any process")
CONFINED = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == "nobody":
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
if sys.argv[2] == "confined":
    libc.prctl(38, 1, 0, 0, 0)
    handled = struct.pack("<Q", 1 << 11)
    ruleset = libc.syscall(444, handled, ctypes.c_size_t(8), 0)
    assert libc.syscall(446, ruleset, 0) == 0
print("ready", flush=True)
for line in sys.stdin:
    mode = ctypes.c_int(-1)
    assert libc.syscall(239, ctypes.byref(mode), None, 0, 0, 0) == 0
    print(mode.value, flush=True)
"""
