"""Processes that are ended if the memory of a tree cannot be filled any more."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from other_user import NOBODY
from trees import PYTHON

from crckpt.host import proc
from crckpt.ops.lazy.family import Family, GuardedTree, _end

WAITING_PROGRAM = "import sys; print('ready', flush=True); sys.stdin.read()"
PROGRAM_WITH_UNFILLED_MEMORY = f"""
import ctypes, fcntl, mmap, os, struct
descriptor = ctypes.CDLL(None).syscall(323, os.O_CLOEXEC | 1)  # userfaultfd, UFFD_USER_MODE_ONLY
if descriptor == -1:
    print('refused', flush=True)
else:
    memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(descriptor, 0xC018AA3F, struct.pack('QQQ', 0xAA, 0, 0))  # UFFDIO_API
    fcntl.ioctl(descriptor, 0xC020AA00, bytearray(struct.pack('QQQQ', address, 1 << 20, 1, 0)))  # UFFDIO_REGISTER
    {WAITING_PROGRAM}
"""
"""A program some of whose memory is supplied by a userfaultfd."""


PROGRAM_WITH_AN_ORPHANED_GRANDCHILD = f"""
import os
if os.fork() == 0:
    if os.fork() == 0:
        {"        ".join(PROGRAM_WITH_UNFILLED_MEMORY.strip().splitlines(keepends=True))}
    os._exit(0)
os.wait()
import time
time.sleep(60)
"""
"""As `PROGRAM_WITH_UNFILLED_MEMORY`, in a child that has lost its parent."""


@contextmanager
def program(code: str, user: int) -> Iterator[subprocess.Popen[bytes]]:
    """A program that waits."""
    words = (PYTHON, "-c", code)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user) as found:
        try:
            assert found.stdout is not None
            if found.stdout.readline() != b"ready\n":
                pytest.skip("no userfaultfd can be made here")
            yield found
        finally:
            found.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can start programs of other users")
@pytest.mark.parametrize("user", [NOBODY, NOBODY - 1])
def test_only_forks_of_the_tree_are_ended(user: int) -> None:
    """Other processes, also of the same user, may run the same program and wait for their own memory."""
    with (
        program(PROGRAM_WITH_AN_ORPHANED_GRANDCHILD, NOBODY) as root,
        program(PROGRAM_WITH_UNFILLED_MEMORY, user) as other,
    ):
        assert root.stdout is not None
        found = proc.identify(root.pid)
        assert found is not None
        tree = GuardedTree()
        tree.write(Family.of([found]))
        _end(tree.read())
        assert root.wait() == -9
        # The pipe ends only after the child, which has it open, has ended, too.
        assert root.stdout.read() == b""
        assert other.poll() is None
