"""The memory that CRIU shares with its code in a process (shared_memory.c): the process can say what it likes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from crckpt.tracking.preload.library import LIBRARY

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there was no C compiler")

SHARING_PROGRAM: Final = """
import ctypes, errno, fcntl, json, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_size_t]
libc.mmap.restype = ctypes.c_void_p
SIZE = 80000
ours, theirs = os.pipe()
if not (pid := os.fork()):
    os.close(ours)
    os.memfd_create("shared"), os.memfd_create("shared"), os.open(sys.argv[1], os.O_RDONLY)
    os.write(theirs, b"x")
    os.read(os.pipe()[0], 1)
os.read(ours, 1)
proc = os.open(f"/proc/{pid}", os.O_RDONLY)
found = {}
for number in sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd")):
    found.setdefault(os.readlink(f"/proc/{pid}/fd/{number}"), []).append(number)

def open_as_criu(path):
    number = libc.openat(proc, path.encode(), os.O_RDWR)
    return number if number >= 0 else errno.errorcode[ctypes.get_errno()]

def share(number):
    number = open_as_criu(f"fd/{number}")
    os.ftruncate(number, SIZE)
    return libc.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, number, 0)

file = open_as_criu(f"fd/{found[sys.argv[1]][0]}")
places = [share(number) for number in found["/memfd:shared (deleted)"]]
maps = [line.split("-")[0] for line in open("/proc/self/maps")]
print(json.dumps({
    "file": fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE,
    "missing": open_as_criu("fd/1000"),
    "map": open_as_criu("map_files/" + open(f"/proc/{pid}/maps").readline().split()[0]),
    "places": places,
    "starts": [int(start, 16) for start in maps],
}))
os.kill(pid, 9)
"""
# What a number of 32 bits can lead to: maps are described by 24 bytes (criu/include/parasite.h).
REACHABLE_BYTES: Final = 24 << 32


def test_criu_gets_only_memory_and_files_that_the_process_has(tmp_path: Path) -> None:
    """As root CRIU could open each file of the process to write. CRIU could also overwrite what is above the memory."""
    file = tmp_path / "file"
    file.write_text("content")
    command = ["env", f"LD_PRELOAD={LIBRARY}", sys.executable, "-c", SHARING_PROGRAM, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["file"], found["missing"], found["map"]) == (0, "EBADF", "ENOTSUP")
    first, second = found["places"]
    assert first < second
    assert [start for start in found["starts"] if second < start <= second + 80000 + REACHABLE_BYTES] == []
