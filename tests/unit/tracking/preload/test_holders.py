"""A restore makes sockets as the process that had them (holders.c, sockets.c), not as root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from crckpt.tracking.preload.library import RESTORE_LIBRARY

pytestmark = [
    pytest.mark.skipif(not RESTORE_LIBRARY.exists(), reason="there was no C compiler"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user"),
]

NOBODY: Final = 65534
# Like CRIU with the library: forks the process of a user and makes its sockets.
MAKES_SOCKETS_AS_CRIU: Final = """
import ctypes, json, os, socket, struct, sys
table, groups = sys.argv[1], range(1000, 1000 + int(sys.argv[2]))
def maker(held):
    return os.fstat(held.fileno()).st_uid
def peer(held):
    return list(struct.unpack("=iII", held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:])
def netlink():
    return maker(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
def pending(listener, name):
    client = socket.socket(socket.AF_UNIX)
    client.connect(name)
    return peer(listener.accept()[0])
def make():
    libc, openat = ctypes.CDLL(None), 257 if os.uname().machine == "x86_64" else 56
    # What CRIU prepares in a process, as a network namespace, ends when it binds this socket.
    yield netlink()
    serves = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    serves.bind(f"\\0/crtools-fd-{os.getpid()}-0")
    yield netlink()
    yield maker(socket.socket(socket.AF_INET, socket.SOCK_RAW, 200))
    yield maker(socket.socket(socket.AF_INET))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\\0crckpt-test-{os.getpid()}")
    listener.listen()
    yield peer(listener)
    yield pending(listener, listener.getsockname())
    # The name was removed, so CRIU connects in /proc/self/fd. Its user may not connect there.
    path = f"{os.path.dirname(table)}/s"
    removed = socket.socket(socket.AF_UNIX)
    removed.bind(path)
    os.chown(path, 0, 0)
    os.chmod(path, 0o600)
    removed.listen()
    number = libc.syscall(openat, -100, path.encode(), os.O_PATH)
    os.unlink(path)
    os.fchdir(libc.syscall(openat, -100, b"/proc/self/fd", os.O_PATH | os.O_DIRECTORY))
    yield pending(removed, str(number))
ready, note = os.pipe()
if child := os.fork():
    with open(table, "r+b") as file:
        record = (child, 65534, 65533, len(groups), *groups, 0)
        file.write(struct.pack(f"{len(record)}I", *record))
    os.write(note, b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.read(ready, 1)
print(json.dumps(list(make())))
"""


@pytest.mark.parametrize("groups", [0, 300, 65536])
def test_restored_sockets_belong_to_the_user_and_groups_of_their_process(tmp_path: Path, groups: int) -> None:
    """This includes connections that nobody has accepted. A process may have as many groups as the kernel allows."""
    table = tmp_path / "holders"
    table.write_bytes(bytes(1 << 19))
    result = subprocess.run(
        [sys.executable, "-S", "-c", MAKES_SOCKETS_AS_CRIU, str(table), str(groups)],
        env=os.environ | {"LD_PRELOAD": str(RESTORE_LIBRARY), "CRCKPT_HOLDERS": str(table)},
        capture_output=True,
        text=True,
        check=True,
    )
    of_criu, *made, listens, abstract, removed = json.loads(result.stdout)
    assert of_criu == 0
    assert made == [NOBODY] * 3
    assert [listens, abstract, removed] == [[NOBODY, NOBODY - 1]] * 3
