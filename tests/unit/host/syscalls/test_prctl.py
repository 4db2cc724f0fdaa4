"""Attributes of a process of our own. Each is given in a child: most cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crckpt.host.syscalls.own_process import is_child_subreaper, memory_map_size, set_child_subreaper


def output_of(code: str) -> str:
    """What a program says that has read its own status."""
    begin = "from crckpt.host.proc.status import read_status\nfrom crckpt.host.syscalls import own_process\n"
    argv = [sys.executable, "-c", begin + code]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_orphans_are_adopted_by_a_subreaper() -> None:
    before = is_child_subreaper()
    try:
        for enabled in (True, False):
            set_child_subreaper(enabled=enabled)
            assert is_child_subreaper() == enabled
    finally:
        set_child_subreaper(enabled=before)


def test_dropped_capability_leaves_the_bounding_set() -> None:
    code = """
before = int(read_status("self")["CapBnd"], 16)
try:
    own_process.drop_capability(21)
except PermissionError:
    print("not permitted")
else:
    own_process.drop_capability(63)
    print(f"{int(read_status('self')['CapBnd'], 16) ^ before:x}")
"""
    done = output_of(code)
    if done == "not permitted":
        pytest.skip("capabilities cannot be dropped here")
    assert done == f"{1 << 21:x}", "CAP_SYS_ADMIN, and nothing else"


def test_no_new_privs_is_set() -> None:
    code = "own_process.prctl(own_process.SET_NO_NEW_PRIVS, 1); print(read_status('self')['NoNewPrivs'])"
    assert output_of(code) == "1"


def test_strict_seccomp_allows_only_read_and_write() -> None:
    code = "import os; print('before', flush=True); prctl(SET_SECCOMP, SECCOMP_MODE_STRICT); os.getppid()"
    begin = "from crckpt.host.syscalls.own_process import SECCOMP_MODE_STRICT, SET_SECCOMP, prctl\n"
    result = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (-9, "before\n")


def test_mm_map_structure_has_the_kernels_layout() -> None:
    """struct prctl_mm_map: eleven numbers, a pointer, and two numbers of 32 bits."""
    assert memory_map_size() == 12 * 8 + 2 * 4
