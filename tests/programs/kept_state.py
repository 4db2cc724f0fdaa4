"""State of the kernel's that a restored program must find again, and that CRIU alone loses.

`kept_state.py WORKDIR NAME...` makes each named kind. When WORKDIR/look appears, it looks at each, which may consume
it, and writes what it found to WORKDIR/found.json.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from selfcheck import Program
from system_calls import LIBC, call, unshare

CLONE_FILES, CLONE_FS, CLONE_NEWUTS, CLONE_NEWNET = 0x400, 0x200, 0x4000000, 0x40000000
CLOCK_REALTIME, ABSOLUTE = 0, 1
F_SETSIG: Final = 10
CLONE: Final = 56
RESERVED: Final = 8 << 40
KEPT: list[object] = []
Look = Callable[[], object]


def in_thread(begin: Callable[[], object], look: Look = lambda: None) -> Look:
    """Call `begin` in another thread; what is returned calls `look` there."""
    ready, asked, found = threading.Event(), threading.Event(), []

    def work() -> None:
        begin()
        ready.set()
        while asked.wait():
            asked.clear()
            found.append(look())

    def ask() -> object:
        asked.set()
        while not found:
            time.sleep(0.01)
        return found.pop()

    threading.Thread(target=work, daemon=True).start()
    ready.wait(10)
    return ask


def places() -> list[str]:
    """Working directory, root and umask of this thread."""
    status = Path("/proc/thread-self/status").read_text()
    umask = next(line for line in status.splitlines() if line.startswith("Umask:"))
    return [*(str(Path("/proc/thread-self", name).readlink()) for name in ("cwd", "root")), umask.split()[1]]


def thread_directories(workdir: Path) -> Look:
    """A thread with its own directory and umask."""
    (workdir / "own").mkdir()

    def leave() -> None:
        unshare(CLONE_FS)
        os.chdir(workdir / "own")
        os.umask(0o027)

    look = in_thread(leave, places)
    return lambda: {"first": places(), "thread": look()}


def thread_root(workdir: Path) -> Look:
    """A thread that has locked itself in."""
    (workdir / "jail/inner").mkdir(parents=True)

    def leave() -> None:
        unshare(CLONE_FS)
        os.chroot(workdir / "jail")
        os.chdir("/inner")

    def look() -> dict[str, bool]:
        return {
            "outside": Path("/proc").exists(),
            "inside": Path("/inner").exists(),
            "there": Path.cwd().name == "inner",
        }

    look_there = in_thread(leave, look)
    return lambda: {"first": look(), "thread": look_there()}


def thread_apart(flags: int) -> Callable[[Path], Look]:
    """A thread with something else of its own."""
    return lambda _: in_thread(lambda: unshare(flags))


def renamed_socket(workdir: Path) -> Look:
    """A server whose socket was bound under another name."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(workdir / "name.tmp"))
    server.listen()
    (workdir / "name.tmp").rename(workdir / "name")
    server.settimeout(5)

    def look() -> object:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(workdir / "name"))
        server.accept()
        return [(workdir / "name.tmp").exists(), Path(server.getsockname()).name]

    return look


def moved_socket(workdir: Path) -> Look:
    """A server whose socket was moved to another directory."""
    (workdir / "run").mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(workdir / "socket"))
    server.listen()
    (workdir / "socket").rename(workdir / "run/socket")
    KEPT.append(server)
    return lambda: None


def wall_clock_timer(_: Path) -> Look:
    """A timer that is set to a time of day, and one that is set to a duration."""
    timers = [call(283, CLOCK_REALTIME, 0) for _ in range(2)]
    due = time.time() + 1000
    call(286, timers[0], ABSOLUTE, struct.pack("4q", 7, 0, int(due), int(due % 1 * 1e9)), None)
    call(286, timers[1], 0, struct.pack("4q", 0, 0, 1000, 0), None)
    begin = time.monotonic()

    def left(timer: int) -> tuple[int, float]:
        value = ctypes.create_string_buffer(32)
        call(287, timer, value)
        interval, _, seconds, rest = struct.unpack("4q", value)
        return interval, seconds + rest / 1e9

    def look() -> object:
        interval, rest = left(timers[0])
        paused = time.monotonic() - begin - (1000 - left(timers[1])[1])
        return {"late": rest - (due - time.time()), "interval": interval, "paused": paused}

    return look


def terminal(_: Path) -> Look:
    """Unread output and unread input of a pseudo terminal with the usual settings."""
    master, slave = os.openpty()
    os.write(slave, b"out\n")
    os.write(master, b"in\x16\x03\n")
    os.set_blocking(master, False)
    os.set_blocking(slave, False)
    settings = termios.tcgetattr(slave)
    return lambda: {
        "output": os.read(master, 999).decode(),
        "input": os.read(slave, 999).decode(),
        "settings": termios.tcgetattr(slave) == settings,
    }


def hung_up_terminal(_: Path) -> Look:
    """Master sides of pseudo terminals: of one the program at the other side has ended."""
    ended, slave = os.openpty()
    os.close(slave)
    used, other = os.openpty()
    unused = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    KEPT.append(other)

    def is_hung_up(master: int) -> bool:
        waits = select.poll()
        waits.register(master, select.POLLIN)
        return any(events & select.POLLHUP for _, events in waits.poll(0))

    return lambda: [is_hung_up(master) for master in (ended, used, unused)]


def last_words(_: Path) -> Look:
    """Unread output of a program that has ended."""
    master, slave = os.openpty()
    os.write(slave, b"bye\n")
    os.close(slave)
    return lambda: os.read(master, 99).decode()


def exclusive_terminal(_: Path) -> Look:
    """A terminal that nobody else may open (TIOCEXCL)."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCEXCL)
    KEPT.append(master)
    return lambda: struct.unpack("i", fcntl.ioctl(slave, 0x80045440, bytes(4)))[0]


def posix_timer(_: Path) -> Look:
    """A timer of the wall clock (timer_create(2)); the kernel does not tell that its time is absolute."""
    timer = ctypes.c_int()
    call(222, CLOCK_REALTIME, None, ctypes.byref(timer))
    call(223, timer, ABSOLUTE, struct.pack("4q", 0, 0, int(time.time()) + 1000, 0), None)
    return lambda: None


def waiting_datagram(workdir: Path) -> Look:
    """A request that waits for a server, which answers to where it came from."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(str(workdir / "server"))
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.bind(str(workdir / "client"))
    client.sendto(b"request", str(workdir / "server"))
    KEPT.append(client)
    return lambda: server.recvfrom(99)[1]


def empty_datagram(_: Path) -> Look:
    """An empty message, and one behind it."""
    reads, writes = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    writes.send(b"")
    writes.send(b"behind")
    KEPT.append(writes)
    return lambda: [reads.recv(99).decode(), reads.recv(99).decode()]


def second_datagram(workdir: Path) -> Look:
    """A message without a sender, and behind it one with."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(str(workdir / "server"))
    for name in ("", "client"):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if name:
            client.bind(str(workdir / name))
        client.sendto(b"second" if name else b"first", str(workdir / "server"))
        KEPT.append(client)

    def look() -> list[str]:
        first, _ = server.recvfrom(99)
        second, sender = server.recvfrom(99)
        return [first.decode(), second.decode(), Path(sender).name]

    return look


def urgent_byte(_: Path) -> Look:
    """A byte that was sent out of band."""
    reads, writes = socket.socketpair()
    writes.send(b"ab")
    writes.send(b"!", socket.MSG_OOB)
    KEPT.append(writes)
    return lambda: reads.recv(1, socket.MSG_OOB).decode()


def pending_error(_: Path) -> Look:
    """A connection that was reset, which the program has not seen yet."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    theirs, _address = server.accept()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    waits = select.poll()
    waits.register(client, 0)
    assert waits.poll(5000)
    KEPT.append(server)
    return lambda: client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def unnamed_file(workdir: Path) -> Look:
    """A file that gets its name when it is complete."""
    file = os.open(workdir, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(file, b"result")
    return lambda: LIBC.linkat(-100, b"/proc/self/fd/%d" % file, -100, os.fsencode(workdir / "result"), 0x400)


def signal_driven(workdir: Path) -> Look:
    """Descriptors that send a signal when there is input (O_ASYNC): a terminal, a named pipe, and an inotify."""
    got: list[int] = []
    signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
    master, slave = os.openpty()
    tty.setraw(slave)
    os.mkfifo(workdir / "pipe")
    pipe = os.open(workdir / "pipe", os.O_RDWR)
    inotify = LIBC.inotify_init()
    (workdir / "watched").mkdir()
    LIBC.inotify_add_watch(inotify, os.fsencode(workdir / "watched"), 0x100)  # IN_CREATE
    for file in (master, slave, pipe, inotify):
        fcntl.fcntl(file, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(file, F_SETSIG, signal.SIGUSR2)
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_ASYNC)
    inputs: dict[str, Callable[[], object]] = {
        "master": lambda: os.write(slave, b"x"),
        "slave": lambda: os.write(master, b"x"),
        "pipe": lambda: os.write(pipe, b"x"),
        "inotify": (workdir / "watched/file").touch,
    }

    def gets_signal(give: Callable[[], object]) -> bool:
        got.clear()
        give()
        time.sleep(0.1)
        return bool(got)

    return lambda: {name: gets_signal(give) for name, give in inputs.items()}


def exit_signal(_: Path) -> Look:
    """A child that ends by another signal than SIGCHLD."""
    if not (child := call(CLONE, 10, 0, 0, 0, 0)):
        while True:
            time.sleep(1)
    return lambda: Path(f"/proc/{child}/stat").read_text().split()[37]


def segments(_: Path) -> Look:
    """Segments of its own (modify_ldt(2)), as Wine has."""
    for entry in ((3, 0x1000, 0xFFF, 0b1000001), (5, 0, 0xFFFFF, 0b0110001)):
        call(154, 1, struct.pack("IIII", *entry), 16)
    buffer = ctypes.create_string_buffer(8 * 8192)

    def look() -> list[str]:
        size = call(154, 0, buffer, len(buffer))
        found = buffer.raw[:size]
        return [found[at : at + 8].hex() if any(found[at : at + 8]) else "" for at in range(0, 48, 8)]

    return look


def locks_of_mapped_file(workdir: Path) -> Look:
    """Locks on a file that is mapped, too, as SQLite and LMDB have them."""
    (workdir / "mapped").write_bytes(bytes(mmap.PAGESIZE))
    file = (workdir / "mapped").open("r+b")
    KEPT.extend((file, mmap.mmap(file.fileno(), 0)))
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 120)
    fcntl.lockf(file, fcntl.LOCK_SH, 0, 128)
    for start in range(1000, 1200, 2):  # more than crckpt takes at once
        fcntl.lockf(file, fcntl.LOCK_EX, 1, start)

    def may_lock(how: int, length: int, start: int) -> bool:
        # A process cannot conflict with itself, and loses its locks when it closes the file.
        other = os.fork()
        if not other:
            with (workdir / "mapped").open("r+b") as again, suppress(BlockingIOError):
                fcntl.lockf(again, how | fcntl.LOCK_NB, length, start)
                os._exit(0)
            os._exit(1)
        return os.waitpid(other, 0)[1] == 0

    wanted = (
        (fcntl.LOCK_SH, 1, 120),
        (fcntl.LOCK_EX, 1, 121),
        (fcntl.LOCK_EX, 1, 4000),
        (fcntl.LOCK_SH, 1, 1198),
        (fcntl.LOCK_SH, 0, 1199),
    )
    return lambda: [may_lock(*each) for each in wanted]


def reservations(workdir: Path) -> Look:
    """Address space that takes no memory, more than a host has: without access but for a part, and of a large file."""
    map_memory = LIBC.mmap
    map_memory.restype = ctypes.c_void_p
    map_memory.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    with (workdir / "large").open("w+b") as file:
        file.truncate(RESERVED)
        os.pwrite(file.fileno(), b"end", RESERVED - 3)
        content = map_memory(None, RESERVED, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
    empty = map_memory(None, RESERVED, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

    def use(part: int) -> int:
        address: int = empty + RESERVED // 2 + part * mmap.PAGESIZE
        LIBC.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
        return address

    ctypes.memmove(use(0), b"used", 4)
    return lambda: (
        [ctypes.string_at(use(part), 4).decode() for part in (0, 1)]
        + [ctypes.string_at(content + RESERVED - 3, 3).decode()]
    )


THINGS: Final[dict[str, Callable[[Path], Look]]] = {
    "thread-directories": thread_directories,
    "thread-root": thread_root,
    "thread-descriptors": thread_apart(CLONE_FILES),
    "thread-network": thread_apart(CLONE_NEWNET),
    "thread-host-name": thread_apart(CLONE_NEWUTS),
    "renamed-socket": renamed_socket,
    "moved-socket": moved_socket,
    "wall-clock-timer": wall_clock_timer,
    "terminal": terminal,
    "hung-up-terminal": hung_up_terminal,
    "last-words": last_words,
    "exclusive-terminal": exclusive_terminal,
    "posix-timer": posix_timer,
    "waiting-datagram": waiting_datagram,
    "empty-datagram": empty_datagram,
    "second-datagram": second_datagram,
    "urgent-byte": urgent_byte,
    "pending-error": pending_error,
    "unnamed-file": unnamed_file,
    "exit-signal": exit_signal,
    "segments": segments,
    "signal-driven": signal_driven,
    "locks-of-mapped-file": locks_of_mapped_file,
    "reservations": reservations,
}


def main() -> None:
    """Make what is named, then count."""
    workdir = Path(sys.argv[1])
    looks = {name: THINGS[name](workdir) for name in sys.argv[2:]}
    program = Program(workdir)

    def step() -> None:
        if (workdir / "look").exists() and not (workdir / "found.json").exists():
            (workdir / "found.new").write_text(json.dumps({name: look() for name, look in looks.items()}))
            (workdir / "found.new").rename(workdir / "found.json")

    program.run(step)


if __name__ == "__main__":
    main()
