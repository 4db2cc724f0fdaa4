"""Control groups for tests. They are the machine's, whatever the namespace, and so no PID makes a name unique."""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from pathlib import Path
from typing import Final

import pytest

from crckpt.host.syscalls.libc import syscall

# linux/bpf.h
_LOAD, _ATTACH, _PROGRAM_OF_PACKETS, _LEAVING = 5, 8, 8, 1
_ALLOW: Final = bytes.fromhex("b700000001000000 9500000000000000")


def make_group(above: Path) -> Path:
    """Make a control group; the test is skipped where none can be made."""
    try:
        return Path(tempfile.mkdtemp(prefix="crckpt-test-", dir=above))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")


def rule_packets(group: Path) -> None:
    """Attach a program to a group of version 2 that judges what is sent, and allows all, until the group is removed."""
    instructions, terms = ctypes.create_string_buffer(_ALLOW), ctypes.create_string_buffer(b"GPL")
    program = _bpf(
        _LOAD, struct.pack("=IIQQ", _PROGRAM_OF_PACKETS, 2, ctypes.addressof(instructions), ctypes.addressof(terms))
    )
    directory = os.open(group, os.O_RDONLY)
    try:
        _bpf(_ATTACH, struct.pack("=4I", directory, program, _LEAVING, 0))
    finally:
        os.close(directory)
        os.close(program)


def _bpf(command: int, wanted: bytes) -> int:
    wanted = wanted.ljust(128, b"\0")
    return syscall("bpf", command, wanted, len(wanted))
