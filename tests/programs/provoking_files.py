"""Kinds for provoking.py: memory, files, mounts. Each returns what must be kept."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import threading
from pathlib import Path

from system_calls import (
    IO_URING_SETUP,
    LIBC,
    MEMFD_SECRET,
    MS_BIND,
    OPEN_TREE,
    PERF_EVENT_OPEN,
    call,
    mount,
    unmount,
    watch,
)

AT_FDCWD, OPEN_TREE_CLONE = -100, 1
IN_MODIFY = 2
PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, ATTRIBUTES_BYTES = 1, 9, 112  # linux/perf_event.h
IO_URING_PARAMETERS_BYTES = 120
PAGE = mmap.PAGESIZE
PORT = 4711


def busy(workdir: Path) -> tuple[object, ...]:
    """One of each resource that a restore must find again."""
    file = _open(workdir / "file")
    os.write(file, b"text")
    (workdir / "cwd").mkdir()
    os.chdir(workdir / "cwd")
    os.mkfifo(workdir / "fifo")
    fifo = os.open(workdir / "fifo", os.O_RDWR)
    locked = _open(workdir / "locked")
    fcntl.lockf(locked, fcntl.LOCK_EX)
    (workdir / "sockets").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(workdir / "sockets/listener"))
    listener.listen()
    tcp = socket.create_server(("127.0.0.1", PORT))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return file, fifo, locked, listener, tcp, os.openpty(), deleted(workdir)


def secret_memory(_: Path) -> mmap.mmap:
    """A page of secret memory."""
    fd = call(MEMFD_SECRET, 0)
    os.ftruncate(fd, PAGE)
    secret = mmap.mmap(fd, PAGE)
    secret[:6] = b"secret"
    os.close(fd)
    return secret


def io_uring(_: Path) -> int:
    """A ring."""
    return call(IO_URING_SETUP, 8, ctypes.create_string_buffer(IO_URING_PARAMETERS_BYTES))


def perf_map(_: Path) -> mmap.mmap:
    """The ring buffer of a software event, whose descriptor is closed."""
    fields = (PERF_TYPE_SOFTWARE, ATTRIBUTES_BYTES, PERF_COUNT_SW_DUMMY)
    fd = _event(struct.pack("<IIQ", *fields))
    ring = mmap.mmap(fd, 2 * PAGE)
    os.close(fd)
    return ring


def uprobe(_workdir: Path) -> object:
    """A probe at the entry of getppid(), and one call, which brings the mapping into this process."""
    kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
    address = ctypes.cast(LIBC.getppid, ctypes.c_void_p).value
    assert address
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            name = ctypes.create_string_buffer(path[0].encode())
            place = address - start + int(offset, 16)
            held = _event(struct.pack("<II48xQQ", kind, ATTRIBUTES_BYTES, ctypes.addressof(name), place))
            LIBC.getppid()
            return held, name
    raise LookupError("getppid")


def _event(attributes: bytes) -> int:
    return call(PERF_EVENT_OPEN, attributes.ljust(ATTRIBUTES_BYTES, b"\0"), os.getpid(), -1, -1, 0)


def device_map(_: Path) -> mmap.mmap:
    """A page of a block device."""
    with Path("/dev/loop7").open("rb") as device:
        return mmap.mmap(device.fileno(), PAGE, prot=mmap.PROT_READ)


def sysv_shm(_: Path) -> int:
    """Shared memory of the host's IPC namespace, removed with this process."""
    identity = LIBC.shmget(0, PAGE, 0o1600)
    LIBC.shmat.restype = ctypes.c_void_p
    address = int(LIBC.shmat(identity, None, 0))
    LIBC.shmctl(identity, 0, None)
    return address


def fuse(_: Path) -> int:
    """The device of file systems in user space."""
    return os.open("/dev/fuse", os.O_RDWR)


def detached_mount(workdir: Path) -> int:
    """A file on a mount that is mounted nowhere."""
    (workdir / "directory").mkdir()
    (workdir / "directory/file").touch()
    tree = call(OPEN_TREE, AT_FDCWD, os.fsencode(workdir / "directory"), OPEN_TREE_CLONE | os.O_CLOEXEC)
    held = os.open("file", os.O_RDONLY, dir_fd=tree)
    os.close(tree)
    return held


def hidden_file(workdir: Path) -> int:
    """A file with another one mounted over it."""
    held = _open(workdir / "file")
    (workdir / "other").touch()
    mount(workdir / "other", workdir / "file", flags=MS_BIND)
    return held


def hugetlbfs(workdir: Path) -> None:
    """A file system that CRIU does not know."""
    mount("none", workdir / "huge", "hugetlbfs")


def bound_from_nowhere(workdir: Path) -> None:
    """A directory of a tmpfs that is not mounted any more."""
    mount("none", workdir / "source", "tmpfs")
    (workdir / "source/directory").mkdir()
    mount(workdir / "source/directory", workdir / "bound", flags=MS_BIND)
    unmount(workdir / "source")


def other_name(workdir: Path) -> int:
    """A removed file that has another name."""
    held = _open(workdir / "file")
    os.link(workdir / "file", workdir / "other")
    (workdir / "file").unlink()
    return held


def deleted(workdir: Path) -> int:
    """A removed file."""
    held = _open(workdir / "deleted")
    os.write(held, b"text")
    (workdir / "deleted").unlink()
    return held


def deleted_large(workdir: Path) -> int:
    """A removed file of 2 MiB."""
    held = _open(workdir / "large")
    os.write(held, bytes(2 << 20))
    (workdir / "large").unlink()
    return held


def deep_file(workdir: Path) -> int:
    """A file whose path is longer than PATH_MAX."""
    os.chdir(workdir)
    for _ in range(20):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    held = _open(Path("file"))
    os.chdir("/")
    return held


def flock(workdir: Path) -> int:
    """A file lock."""
    held = _open(workdir / "locked")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def lease(workdir: Path) -> int:
    """A lease of a file, for reading."""
    (workdir / "leased").touch()
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = os.open(workdir / "leased", os.O_RDONLY)
    fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return held


def proc_watch(_: Path) -> int:
    """A watch in /proc."""
    return watch(Path("/proc/self/comm"), IN_MODIFY)


def epoll_of_another(_: Path) -> tuple[object, ...]:
    """An epoll that watches what only a child still has open."""
    poll = select.epoll()
    reader, writer = os.pipe()
    poll.register(reader, select.EPOLLIN)
    if os.fork() == 0:
        poll.close()
        threading.Event().wait()
    os.close(reader)
    return poll, writer


def terminal_outside(workdir: Path) -> int:
    """WORKDIR/terminal, of which another process has the other side."""
    return os.open(workdir / "terminal", os.O_RDWR | os.O_NOCTTY)


def packet_pipe(_: Path) -> tuple[int, int]:
    """A pipe in packet mode."""
    return os.pipe2(os.O_DIRECT)


def _open(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
