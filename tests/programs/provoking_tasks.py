"""Kinds for provoking.py: processes, threads, and what they are. Each returns what must be kept."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from system_calls import CLONE_NEWUTS, CLONE_VFORK, CLONE_VM, EXIT, LIBC, PIDFD_OPEN, call, unshare


def wait(workdir: Path, held: object = None) -> NoReturn:
    """Report that it is held, and answer for ever. The argument keeps `held` alive."""
    (workdir / "ready").touch()
    while True:
        signal.sigwait({signal.SIGUSR1})
        with (workdir / "answers").open("a") as answers:
            answers.write(".")


def nothing(_: Path) -> None:
    """Nothing that prevents a dump."""


def pidfd_outside(_: Path) -> int:
    """A pidfd to the parent."""
    return os.pidfd_open(os.getppid())


def pidfd_thread(_: Path) -> int:
    """A pidfd to a thread: PIDFD_THREAD is O_EXCL."""
    return call(PIDFD_OPEN, os.getpid(), os.O_EXCL)


def many_groups(_: Path) -> None:
    """More groups than CRIU reads."""
    os.setgroups(range(10_000, 12_000))


def child_in_namespace(_: Path) -> int:
    """A child with its own UTS namespace."""
    return _with_child(lambda: unshare(CLONE_NEWUTS))


def child_without_leader(_: Path) -> int:
    """A child whose main thread has ended, while another runs."""

    ours, theirs = os.pipe()
    if os.fork() == 0:
        threading.Thread(target=_closes_when_alone, args=(theirs,)).start()
        call(EXIT, 0)
    os.close(theirs)
    os.read(ours, 1)
    return ours


def _closes_when_alone(theirs: int) -> None:
    _until_alone()
    os.close(theirs)
    threading.Event().wait()


def _until_alone() -> None:
    """The main thread is a zombie now."""
    status = Path(f"/proc/{os.getpid()}/status")
    while "State:\tZ" not in status.read_text():
        os.sched_yield()


def _with_child(begins: Callable[[], None]) -> int:
    """Fork a child that does that and stays. Run it last: a child whose main thread ends there closes nothing."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        begins()
        os.close(theirs)
        threading.Event().wait()
    os.close(theirs)
    os.read(ours, 1)
    return ours


def without_leader(workdir: Path) -> None:
    """The main thread ends, another answers."""
    threading.Thread(target=_waits_when_alone, args=(workdir,)).start()
    call(EXIT, 0)


def _waits_when_alone(workdir: Path) -> None:
    _until_alone()
    wait(workdir)


def vforked(workdir: Path) -> None:
    """A process that waits in vfork() as long as its child lives; only SIGKILL gets through."""
    stack = mmap.mmap(-1, 1 << 16)
    top = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(stack)) + len(stack))
    (workdir / "ready").touch()
    LIBC.clone(LIBC.pause, top, CLONE_VM | CLONE_VFORK | signal.SIGCHLD, None)


def traced(_: Path) -> int:
    """Another process traces it: a child, and the child keeps running."""
    ours, theirs = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        LIBC.ptrace(0x4206, os.getppid(), None, None)  # PTRACE_SEIZE
        os.close(theirs)
        threading.Event().wait()
    os.close(theirs)
    os.read(ours, 1)
    return ours
