"""Take an id: usage take_id.py NUMBER PID|thread|group|session. Prints `taken by PID` and keeps it until it is ended.

A child whose leader had the id and has ended keeps a group or session.
"""

import ctypes
import os
import signal
import struct
import sys
from typing import Final, NoReturn

CLONE3: Final = 435  # asm-generic/unistd.h; it has this number on every architecture
# linux/sched.h
CLONE_VM: Final = 0x100
CLONE_FS: Final = 0x200
CLONE_FILES: Final = 0x400
CLONE_SIGHAND: Final = 0x800
CLONE_VFORK: Final = 0x4000
CLONE_THREAD: Final = 0x10000
# The new thread runs on this thread's stack, so this thread must wait for it (CLONE_VFORK): that is for ever.
THREAD: Final = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_VFORK

# PyDLL keeps Python's own lock: the child has no other thread to get it back from.
LIBC: Final = ctypes.PyDLL(None, use_errno=True)


def main() -> None:
    """Take the id as requested."""
    number, kind = int(sys.argv[1]), sys.argv[2]
    if kind == "PID" and os.getpid() == number:
        hold()
    if kind == "thread":
        clone(number, THREAD, 0)
        hold()
    pid = clone(number, 0, signal.SIGCHLD)
    if pid:
        os.waitpid(pid, 0)
    elif kind == "PID":
        hold()
    else:
        leave_behind(kind)


def clone(number: int, flags: int, exit_signal: int) -> int:
    """Start a task with that id: its id here, 0 in the task."""
    # Never by ns_last_pid: what others start then gets numbers that the trees of other tests come back to.
    wanted = ctypes.c_int(number)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size
    words = struct.pack("=10Q", flags, 0, 0, 0, exit_signal, 0, 0, 0, ctypes.addressof(wanted), 1)
    pid: int = LIBC.syscall(CLONE3, ctypes.c_char_p(words), len(words))
    if pid < 0:
        sys.exit(f"cannot get {number}: {os.strerror(ctypes.get_errno())}")
    return pid


def leave_behind(kind: str) -> None:
    """Lead a new session, leave a child in it and end; for `session` the child leads a group of its own."""
    os.setsid()
    if os.fork() == 0:
        if kind == "session":
            os.setpgid(0, 0)
        hold()


def hold() -> NoReturn:
    """Report that the id is taken, and stay."""
    os.write(1, f"taken by {os.getpid()}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
