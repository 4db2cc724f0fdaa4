"""The session keyring of a process, and a new keyring for its children."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

KEYRING_PROGRAM = """
import subprocess, sys
from crckpt.host.syscalls.own_process import join_new, own_session
join_new()
query = "from crckpt.host.syscalls.own_process import own_session; print(own_session().id)"
child = subprocess.run([sys.executable, "-c", query], capture_output=True, text=True, check=True)
print(own_session().id, child.stdout.strip(), own_session().uid)
"""

LONGEST_NAME = """
import ctypes
from crckpt.host.syscalls.own_process import own_session
from crckpt.host.syscalls.libc import syscall
serial = syscall("keyctl", 1, ctypes.create_string_buffer(b"n" * 4095))
print(own_session().id == serial)
"""


def test_longest_keyring_name_is_read() -> None:
    result = subprocess.run([sys.executable, "-c", LONGEST_NAME], capture_output=True, text=True, check=False)
    if "in syscall" in result.stderr:
        pytest.skip(f"no keyrings here: {result.stderr.splitlines()[-1]}")
    assert result.stdout == "True\n", result.stderr


def test_children_inherit_the_new_keyring() -> None:
    result = subprocess.run([sys.executable, "-c", KEYRING_PROGRAM], capture_output=True, text=True, check=False)
    if "cannot make a session keyring" in result.stderr:
        pytest.skip(f"no keyrings here: {result.stderr.splitlines()[-1]}")
    ours, childs, uid = result.stdout.split()
    assert ours == childs
    assert int(uid) == os.getuid()
