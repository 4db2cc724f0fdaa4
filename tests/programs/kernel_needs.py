"""A program with special needs of the kernel: a seccomp filter (that allows everything), guard pages, and a UDP port.

The port is written to WORKDIR/port.
"""

import ctypes
import mmap
import os
import socket
import struct
import sys
from pathlib import Path

from selfcheck import PAGE, Program

MADV_GUARD_INSTALL = 102  # linux/mman.h
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
RETURN_ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)  # BPF_RET | BPF_K, SECCOMP_RET_ALLOW


def main() -> None:
    """Use all these features of the kernel, and answer datagrams at the port."""
    workdir = Path(sys.argv[1])
    guarded = mmap.mmap(-1, 16 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    guarded[:] = b"g" * len(guarded)
    guarded.madvise(MADV_GUARD_INSTALL, 4 * PAGE, PAGE)
    _filter()
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("127.0.0.1", 0))
    (workdir / "port").write_text(str(bound.getsockname()[1]))
    program = Program(workdir)

    def step() -> None:
        program.facts["port"] = bound.getsockname()[1]
        program.expect(guarded[3 * PAGE] == guarded[5 * PAGE] == ord("g"), "what is around the guard has changed")

    program.run(step)


def _filter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(RETURN_ALLOW, len(RETURN_ALLOW))
    # struct sock_fprog
    filters = struct.pack("=HxxxxxxQ", 1, ctypes.addressof(code))
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters, 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
