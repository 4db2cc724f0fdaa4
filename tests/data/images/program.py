"""A process tree with one of everything that CRIU can dump: the images next to this file are of it.

Run in an empty directory; writes `ready` there when everything is set up, then waits to be dumped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pty
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from ctypes import CDLL, c_int, c_long
from pathlib import Path
from typing import Final

LIBC: Final = CDLL(None, use_errno=True)
KEEP: list[object] = []
"""What must stay open: sockets and maps that Python would close."""
PIDFD_OPEN: Final = 434


def main() -> None:
    """Open everything, fork the children, say so, wait."""
    os.closerange(3, 1024)
    for step in (files, deleted_files, pipes, terminals, unix_sockets, inet_sockets, descriptors, maps, signals):
        step()
    threading.Thread(target=wait, daemon=True, name="worker").start()
    child(daemon_child)
    child(stopped_child)
    child(zombie_child)
    Path("ready").touch()
    wait()


def wait() -> None:
    """Wait forever."""
    while True:
        time.sleep(1000)


def files() -> None:
    """Open a file for reading at an offset, one for reading and writing, an append-only one, and a directory."""
    Path("plain").write_bytes(b"0123456789" * 10)
    os.lseek(os.open("plain", os.O_RDONLY), 42, os.SEEK_SET)
    os.open("data", os.O_RDWR | os.O_CREAT, 0o640)
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, b"first line\n")
    os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.open(os.fsencode("na\u00efve-") + b"\xff", os.O_RDWR | os.O_CREAT, 0o600)


def deleted_files() -> None:
    """Open deleted files: a small one, an append-only one, a large one with holes, and one that has another name."""
    for name, flags, size in (("small", os.O_RDWR, 1000), ("gone.log", os.O_WRONLY | os.O_APPEND, 77)):
        descriptor = os.open(name, flags | os.O_CREAT, 0o600)
        os.write(descriptor, b"g" * size)
        Path(name).unlink()
    large = os.open("large", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(large, 8 << 20)
    os.pwrite(large, b"in the middle", 4 << 20)
    Path("large").unlink()
    os.open("linked", os.O_RDWR | os.O_CREAT, 0o600)
    os.link("linked", "other-name")
    Path("linked").unlink()


def pipes() -> None:
    """Open a pipe and a named pipe with data in them."""
    _, writing = os.pipe()
    os.write(writing, b"in flight")
    os.mkfifo("fifo")
    both = os.open("fifo", os.O_RDWR)
    os.write(both, b"queued")


def terminals() -> None:
    """A pseudo terminal, both ends."""
    pty.openpty()


def unix_sockets() -> None:
    """A pair with data in flight, a listener with a name, a datagram socket with an abstract name."""
    left, right = socket.socketpair()
    left.send(b"to the right")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("listener.sock")
    listener.listen(5)
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind("\0crckpt-images")
    KEEP.extend((left, right, listener, datagrams))


def inet_sockets() -> None:
    """TCP listening and connected, IPv6 listening, UDP, and a netlink socket."""
    listener = socket.create_server(("127.0.0.1", 47001))
    client = socket.create_connection(("127.0.0.1", 47001))
    server, _ = listener.accept()
    client.send(b"unread")
    six = socket.create_server(("::1", 47002), family=socket.AF_INET6)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 47003))
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    netlink.bind((0, 0))
    KEEP.extend((listener, client, server, six, datagrams, netlink))


def descriptors() -> None:
    """eventfd, epoll, timerfd, signalfd, inotify, memfd, pidfd."""
    event = LIBC.eventfd(7, 0)
    epoll = select.epoll()
    epoll.register(event, select.EPOLLIN)
    LIBC.timerfd_create(1, 0)
    mask = (c_long * 16)(1 << (signal.SIGUSR2 - 1))
    LIBC.signalfd(-1, mask, 0)
    watch = LIBC.inotify_init()
    LIBC.inotify_add_watch(watch, os.fsencode(Path.cwd()), 0x100)
    memory = os.memfd_create("scratch")
    os.ftruncate(memory, 12345)
    LIBC.syscall(c_long(PIDFD_OPEN), c_int(os.getpid()), c_int(0))
    fcntl.fcntl(os.open("/dev/null", os.O_RDWR), fcntl.F_SETFD, 0)
    KEEP.append(epoll)


def maps() -> None:
    """A file mapped shared and one mapped private, memory shared with children."""
    for name, flags in (("shared-map", mmap.MAP_SHARED), ("private-map", mmap.MAP_PRIVATE)):
        Path(name).write_bytes(b"m" * 10000)
        descriptor = os.open(name, os.O_RDWR)
        KEEP.append(mmap.mmap(descriptor, 10000, flags=flags))
        os.close(descriptor)
    shared = mmap.mmap(-1, 3 * 4096)
    shared[:5] = b"hello"
    KEEP.append(shared)


def signals() -> None:
    """SIGUSR1 is blocked and pending; a timer runs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.setitimer(signal.ITIMER_REAL, 5000)


def daemon_child() -> None:
    """Lead a session."""
    os.setsid()
    wait()


def stopped_child() -> None:
    """Lead a process group and stop itself."""
    os.setpgid(0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


def zombie_child() -> None:
    """End with status 3. The parent does not reap this child."""
    os._exit(3)


def child(run: Callable[[], None]) -> None:
    """Fork, and return when the child is in the state that it was made for."""
    pid = os.fork()
    if pid == 0:
        run()
    elif run is not daemon_child:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    else:
        while os.getsid(pid) != pid:
            time.sleep(0.01)


if __name__ == "__main__":
    main()
