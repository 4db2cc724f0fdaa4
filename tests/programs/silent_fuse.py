"""A file system in user space that stops answering: `silent_fuse.py MOUNTPOINT SILENT PIDFILE`.

It has one file, `file`, of four pages. When the file SILENT exists it reads requests and answers none, so that the
kernel cannot interrupt a task that waits; with the content `deaf` it reads none. Nothing is cached.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
from pathlib import Path
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
# linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR, READDIR, INTERRUPT, BATCH_FORGET = (
    *(1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 28, 36, 42),
)
RELEASEDIR: Final = 29
HEADER: Final = struct.Struct("<IIQQIIII")
ROOT, FILE = 1, 2
SIZE: Final = 4 * 4096
MS_NOSUID_NODEV: Final = 6


def main() -> None:
    """Mount the file system, and answer until SILENT exists."""
    mountpoint, silent = sys.argv[1], Path(sys.argv[2])
    fd = os.open("/dev/fuse", os.O_RDWR)
    user = os.environ.get("FUSE_USER", os.getuid())
    options = f"fd={fd},rootmode=40000,user_id={user},group_id={os.getgid()},allow_other,default_permissions"
    if LIBC.mount(b"silent", mountpoint.encode(), b"fuse", MS_NOSUID_NODEV, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount it")
    Path(sys.argv[3]).write_text(str(os.getpid()))
    print("mounted", flush=True)
    os.close(1)
    while True:
        request = os.read(fd, 1 << 17)
        length, opcode, unique, node, *_ = HEADER.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        if silent.exists():
            if silent.read_text() == "deaf":
                signal.pause()
            continue
        code, answer = answered(opcode, node, request[HEADER.size : length])
        os.write(fd, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)


def answered(opcode: int, node: int, payload: bytes) -> tuple[int, bytes]:
    """Return errno and what follows the header of the answer."""
    if opcode == INIT:
        return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, 0)
    if opcode == LOOKUP:
        if payload.rstrip(b"\0") != b"file":
            return errno.ENOENT, b""
        return 0, struct.pack("<QQQQII", FILE, 0, 0, 0, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return 0, struct.pack("<QII", 0, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return 0, struct.pack("<QII", 1, 0, 0)
    if opcode == READ:
        _, offset, size = struct.unpack_from("<QQI", payload)
        return 0, (b"silence " * (SIZE // 8))[offset : offset + size]
    if opcode == STATFS:
        return 0, struct.pack("<QQQQQIIII24x", 4, 0, 0, 1, 0, 4096, 255, 4096, 0)
    return (0, b"") if opcode in (RELEASE, RELEASEDIR, FLUSH, READDIR) else (errno.ENOSYS, b"")


def attributes(node: int) -> bytes:
    """Return `struct fuse_attr` of a node."""
    mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o644
    return struct.pack(
        "<QQQQQQIIIIIIIIII", node, SIZE, 32, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0
    )


if __name__ == "__main__":
    main()
