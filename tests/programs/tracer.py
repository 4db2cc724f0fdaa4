"""Trace the process PID as a debugger does, report that, and wait until stdin ends."""

import ctypes
import os
import sys
from typing import Final

PTRACE_SEIZE: Final = 0x4206  # linux/ptrace.h


def main() -> None:
    """Seize the process, and do nothing with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("traced", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
