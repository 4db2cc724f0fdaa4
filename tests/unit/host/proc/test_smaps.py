"""Memory of real processes: how much CRIU has to write of it, and what it cannot save."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import tempfile
from pathlib import Path

from small_programs import WAIT_STATEMENTS, free_pid, program

from crckpt.host import proc
from crckpt.host.proc.maps import UnsavableMap, find_unsavable_maps, memory, sum_memory

MIB = 1 << 20
IPC_PRIVATE, IPC_RMID = 0, 0
PROGRAM_WITH_SHARED_PAGES = f"""
import mmap
shared = mmap.mmap(-1, 8 << 20)
shared.write(b"x" * len(shared))
child = os.fork()
if child == 0:
    sum(shared[at] for at in range(0, len(shared), 4096))
    os.read(0, 1)
    os._exit(0)
own = b"y" * (4 << 20)
{WAIT_STATEMENTS}
"""


def rollup(**sizes: int) -> list[str]:
    return ["55d0-7ffc ---p 00000000 00:00 0 [rollup]", *(f"{name}: {size} kB" for name, size in sizes.items())]


def test_pages_shared_by_processes_count_once() -> None:
    with program(PROGRAM_WITH_SHARED_PAGES) as process:
        (child,) = proc.children(process.pid)
        both, parent = memory(process.pid, child), memory(process.pid)
        assert 12 * MIB <= both < 40 * MIB
        assert parent < both
        os.kill(child, 9)


def test_shared_huge_pages_count_once() -> None:
    processes = (rollup(Anonymous=4, Shared_Hugetlb=2048), rollup(Pss_Shmem=8, Swap=4, Shared_Hugetlb=4096))
    assert sum_memory(processes) == (4 + 8 + 4 + 4096) << 10
    assert sum_memory([rollup(Rss=100, Private_Hugetlb=2048)]) == 2048 << 10
    assert sum_memory([]) == 0


def test_criu_cannot_save_system_v_memory_of_huge_pages() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(IPC_PRIVATE, ctypes.c_size_t(mmap.PAGESIZE), 0o600)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    address = libc.shmat(segment, None, 0)
    try:
        libc.shmctl(segment, IPC_RMID, None)
        (found,) = (each for each in find_unsavable_maps(os.getpid()) if each.start == address)
        assert found == UnsavableMap(os.getpid(), address, "/SYSV00000000 (deleted)", "sysv")
    finally:
        libc.shmdt(ctypes.c_void_p(address))
    assert not any(each.start == address for each in find_unsavable_maps(os.getpid()))


def test_criu_can_save_files_in_memory() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file, Path("/dev/zero").open("r+b") as device:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE), mmap.mmap(device.fileno(), mmap.PAGESIZE):
            assert find_unsavable_maps(os.getpid()) == ()


def test_criu_can_save_ordinary_memory(waiting_program: subprocess.Popen[bytes]) -> None:
    assert find_unsavable_maps(waiting_program.pid) == ()
    assert find_unsavable_maps(free_pid()) == ()
    assert memory(free_pid()) == 0
