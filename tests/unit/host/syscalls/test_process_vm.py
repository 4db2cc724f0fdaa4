"""Memory of another process is written, in rows."""

from __future__ import annotations

import errno
import os

import numpy as np
import numpy.typing as npt
import pytest
from small_programs import WAIT_STATEMENTS, free_pid, program, read_line

from crckpt.host.syscalls.process_vm import can_write_memory, write_memory

CODE = """
import ctypes
memory = ctypes.create_string_buffer(64)
print(ctypes.addressof(memory), flush=True)
sys.stdin.readline()
print(memory.raw[:8].hex(), memory.raw[32:40].hex(), flush=True)
"""


def rows(*pairs: tuple[int, int]) -> npt.NDArray[np.uint64]:
    return np.array(pairs, np.uint64)


def test_pages_are_written_to_their_addresses_in_another_process() -> None:
    if not can_write_memory():
        pytest.skip("the kernel does not allow it")
    own_bytes = np.frombuffer(b"A" * 8 + b"B" * 8, np.uint8)
    start = own_bytes.ctypes.data
    with program(CODE.replace("print(ctypes", "print('ready', flush=True); print(ctypes") + WAIT_STATEMENTS) as process:
        address = int(read_line(process))
        write_memory(process.pid, rows((start, 8), (start + 8, 8)), rows((address, 8), (address + 32, 8)))
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert read_line(process).split() == [b"41" * 8, b"42" * 8]


def test_unmapped_memory_and_ended_process_are_errors() -> None:
    own_bytes = np.frombuffer(b"A" * 8, np.uint8)
    own_rows = rows((own_bytes.ctypes.data, 8))
    with pytest.raises(OSError, match=f"process {os.getpid()} cannot be filled: Bad address"):
        write_memory(os.getpid(), own_rows, rows((8, 8)))
    ended_pid = free_pid()
    with pytest.raises(OSError, match="it has ended") as caught:
        write_memory(ended_pid, own_rows, rows((8, 8)))
    assert caught.value.errno == errno.ESRCH
