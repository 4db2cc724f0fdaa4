"""A restore adds watches and takes leases with the rights of the process that had them (holders.c)."""

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
# Like CRIU with the library: forks the process of a user, which opens the watched files as root.
WATCHING_PROGRAM: Final = """
import ctypes, errno, fcntl, json, os, struct, sys
table, mine, roots = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
F_GETOWNER_UIDS = 17
def watch(path):
    link = f"/proc/self/fd/{os.open(path, os.O_PATH)}".encode()
    if libc.inotify_add_watch(libc.inotify_init1(0), link, 2) < 0:
        return errno.errorcode[ctypes.get_errno()]
    return "added"
def mark(path):
    link = f"/proc/self/fd/{os.open(path, os.O_PATH)}".encode()
    group = libc.fanotify_init(0x200, 0)  # FAN_REPORT_FID: what a user may ask for
    if group < 0:
        return "no fanotify"
    if libc.fanotify_mark(group, 1, ctypes.c_uint64(2), -100, link) < 0:
        return errno.errorcode[ctypes.get_errno()]
    return "added"
def lease(path):
    held = os.open(path, os.O_RDONLY)
    before = libc.setfsuid(os.fstat(held).st_uid)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return struct.unpack("=II", fcntl.fcntl(held, F_GETOWNER_UIDS, bytes(8)))
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        libc.setfsuid(before)
ready, note = os.pipe()
if child := os.fork():
    with open(table, "r+b") as file:
        file.write(struct.pack("5I", child, 65534, 65533, 0, 0))
    os.write(note, b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.read(ready, 1)
print(json.dumps([[add(path) for path in (mine, roots)] for add in (watch, mark, lease)]))
"""


def test_restored_watches_and_leases_are_only_those_that_their_user_may_have(tmp_path: Path) -> None:
    """A private file of root's at the same path is not watched. The signals of a lease are the user's."""
    table, own_directory, roots = (tmp_path / name for name in ("holders", "mine", "roots"))
    for path in (table, own_directory, roots):
        path.touch(0o600)
    os.truncate(table, 1 << 16)
    os.chown(own_directory, NOBODY, NOBODY)
    result = subprocess.run(
        [sys.executable, "-S", "-c", WATCHING_PROGRAM, str(table), str(own_directory), str(roots)],
        env=os.environ | {"LD_PRELOAD": str(RESTORE_LIBRARY), "CRCKPT_HOLDERS": str(table)},
        capture_output=True,
        text=True,
        check=True,
    )
    watched, marked, leased = json.loads(result.stdout)
    assert watched == ["added", "EACCES"]
    if marked[0] != "no fanotify":
        assert marked == ["added", "EACCES"]
    assert leased == [[NOBODY, NOBODY], "EACCES"]
