"""Print all that the kernel tells a program about itself, line by line.

`reads_itself.py WORKDIR` has descriptors of many kinds, most with unusual settings. At each new WORKDIR/look it writes
its lines, {name: value}, to WORKDIR/found.json.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from selfcheck import Program
from system_calls import LIBC, call, watch

KEPT: list[object] = []
LEVELS: Final = {"SOCKET": 1, "IP": 0, "TCP": 6, "UDP": 17, "IPV6": 41, "PACKET": 263, "NETLINK": 270}
MOST_OPTIONS: Final = 130
# fcntl(2): those that only read.
FCNTL: Final = {"F_GETFD": 1, "F_GETFL": 3, "F_GETOWN": 9, "F_GETSIG": 11, "F_GETLEASE": 1025, "F_GETPIPE_SZ": 1032}
FCNTL_MORE: Final = {"F_GET_SEALS": 1034, "F_GET_RW_HINT": 1035, "F_GET_FILE_RW_HINT": 1037, "F_GETOWN_EX": 16}
# ioctl(2), and how many bytes it returns.
IOCTLS: Final = {
    "TCGETS2": (0x802C542A, 44),
    "TIOCGLCKTRMIOS": (0x5456, 36),
    "TIOCGWINSZ": (0x5413, 8),
    "TIOCGETD": (0x5424, 4),
    "TIOCGEXCL": (0x80045440, 4),
    "TIOCGPKT": (0x80045438, 4),
    "TIOCGPTLCK": (0x80045439, 4),
    "TIOCGPTN": (0x80045430, 4),
    "TIOCGSID": (0x5429, 4),
    "TIOCGPGRP": (0x540F, 4),
    "FIONREAD": (0x541B, 4),
    "TIOCOUTQ": (0x5411, 4),
    "SIOCATMARK": (0x8905, 4),
    "SIOCGPGRP": (0x8904, 4),
    "SIOCGSTAMP": (0x8906, 16),
    "FS_IOC_GETFLAGS": (0x80086601, 8),
    "FS_IOC_GETVERSION": (0x80087601, 8),
    "FIGETBSZ": (2, 4),
}
# prctl(2): those that return a value, and those that write one.
PRCTL: Final = {
    "PDEATHSIG": (2, 4),
    "DUMPABLE": (3, 0),
    "KEEPCAPS": (7, 0),
    "TIMING": (13, 0),
    "NAME": (16, 16),
    "SECCOMP": (21, 0),
    "TSC": (25, 4),
    "SECUREBITS": (27, 0),
    "TIMERSLACK": (30, 0),
    "MCE_KILL": (34, 0),
    "CHILD_SUBREAPER": (37, 8),
    "NO_NEW_PRIVS": (39, 0),
    "TID_ADDRESS": (40, 8),
    "THP_DISABLE": (42, 0),
    "IO_FLUSHER": (58, 0),
    "MDWE": (66, 0),
    "MEMORY_MERGE": (68, 0),
}
FILES: Final = (
    *("status", "stat", "limits", "oom_score_adj", "personality", "coredump_filter", "timerslack_ns", "autogroup"),
    *("cgroup", "loginuid", "sessionid", "timens_offsets", "uid_map", "gid_map", "setgroups", "cmdline", "comm"),
    *("environ", "auxv", "arch_status", "ksm_stat", "timers", "io", "schedstat", "attr/current", "projid_map"),
)
FACTS: Final = (
    "exe",
    "cwd",
    "root",
    *(f"ns/{kind}" for kind in ("net", "uts", "ipc", "mnt", "user", "cgroup", "time")),
)


def hold(workdir: Path) -> dict[str, int]:
    """Open one descriptor of each kind; name -> number."""
    found: dict[str, int] = {}

    def keep(name: str, made: int | socket.socket) -> int:
        KEPT.append(made)
        found[name] = made if isinstance(made, int) else made.fileno()
        return found[name]

    file = keep("file", os.open(workdir / "file", os.O_RDWR | os.O_CREAT | os.O_NOATIME | os.O_DSYNC))
    os.write(file, b"content")
    fcntl.flock(file, fcntl.LOCK_SH)
    fcntl.fcntl(file, 1036, struct.pack("Q", 3))  # F_SET_RW_HINT
    leased = keep("leased", os.open(workdir / "leased", os.O_RDONLY | os.O_CREAT))
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    watched = keep("directory", os.open(workdir, os.O_RDONLY | os.O_DIRECTORY))
    fcntl.fcntl(watched, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    keep("path", os.open(workdir, os.O_PATH))
    reads, writes = os.pipe2(os.O_NONBLOCK)
    keep("pipe", reads)
    keep("pipe, written", writes)
    fcntl.fcntl(writes, 1031, 1 << 17)
    fcntl.fcntl(reads, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reads, fcntl.F_SETSIG, signal.SIGUSR1)
    fcntl.fcntl(reads, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    keep("eventfd", os.eventfd(7, os.EFD_SEMAPHORE | os.EFD_NONBLOCK))
    timer = keep("timerfd", call(283, 1, os.O_CLOEXEC))
    call(286, timer, 0, struct.pack("4q", 3600, 0, 3600, 0), None)
    keep("signalfd", call(289, -1, struct.pack("Q", 1 << signal.SIGUSR2 - 1), 8, 0))
    keep("inotify", watch(workdir, 0x100))
    memory = keep("memfd", os.memfd_create("sealed", os.MFD_ALLOW_SEALING))
    os.truncate(memory, 4096)
    fcntl.fcntl(memory, 1033, 2)
    keep("pidfd", os.pidfd_open(os.getpid()))
    keep("proc", os.open("/proc/self/maps", os.O_RDONLY))
    keep("null", os.open("/dev/null", os.O_WRONLY | os.O_APPEND))
    master, slave = os.openpty()
    keep("master", master)
    keep("slave", slave)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 33, 99, 5, 6))
    fcntl.ioctl(master, termios.TIOCPKT, struct.pack("i", 1))
    fcntl.ioctl(slave, termios.TIOCEXCL)
    for family, name in ((socket.AF_INET, "4"), (socket.AF_INET6, "6")):
        keep(f"udp{name}", socket.socket(family, socket.SOCK_DGRAM))
        server = socket.create_server(("", 0), family=family)
        keep(f"tcp{name}, listening", server)
        client = socket.create_connection(("::1" if name == "6" else "127.0.0.1", server.getsockname()[1]))
        keep(f"tcp{name}", client)
        keep(f"tcp{name}, accepted", server.accept()[0])
    for kind in ("STREAM", "DGRAM", "SEQPACKET"):
        one, other = socket.socketpair(socket.AF_UNIX, getattr(socket, f"SOCK_{kind}"))
        keep(f"unix {kind.lower()}", one)
        keep(f"unix {kind.lower()}, other", other)
        one.shutdown(socket.SHUT_RD)
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    netlink.bind((0, 0))
    keep("netlink", netlink)
    epoll = keep("epoll", call(291, 0))
    call(233, epoll, 1, reads, struct.pack("=IQ", 1, 9))
    return found


def read_files(directory: str) -> Iterator[tuple[str, str]]:
    """Each line of each file of a directory of /proc."""
    for name in FILES:
        with suppress(OSError):
            text = Path(directory, name).read_bytes().decode(errors="backslashreplace")
            if name == "stat":
                before, _, after = text.rpartition(")")
                text = "\n".join(f"{at}: {word}" for at, word in enumerate([before, *after.split()], 2))
            for at, line in enumerate(text.splitlines()):
                key, found, value = (
                    re.split(r"(:|  )", line, maxsplit=1) if re.search(r":|  ", line) else (str(at), "", line)
                )
                yield f"{name} {key if found else at}", value.strip()
    for name in FACTS:
        with suppress(OSError):
            yield name, str(Path(directory, name).readlink())


def read_descriptor(number: int) -> Iterator[tuple[str, str]]:
    """All that fcntl, ioctl, fstat, fdinfo and getsockopt tell of a descriptor."""
    yield "link", str(Path(f"/proc/self/fd/{number}").readlink())
    status = os.fstat(number)
    for name in ("st_mode", "st_ino", "st_dev", "st_rdev", "st_nlink", "st_uid", "st_gid", "st_size"):
        yield name, str(getattr(status, name))
    for name, operation in FCNTL.items():
        with suppress(OSError):
            yield name, str(fcntl.fcntl(number, operation))
    for name, operation in FCNTL_MORE.items():
        with suppress(OSError):
            yield (
                name,
                str(
                    fcntl.fcntl(number, operation, bytes(8))
                    if name != "F_GET_SEALS"
                    else fcntl.fcntl(number, operation)
                ),
            )
    for at, line in enumerate(Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()):
        yield f"fdinfo {at} {line.partition(':')[0]}", line.partition(":")[2].strip()
    for name, (request, size) in IOCTLS.items():
        with suppress(OSError):
            yield f"ioctl {name}", fcntl.ioctl(number, request, bytes(size)).hex()
    with suppress(OSError):
        held = socket.socket(fileno=os.dup(number))
        with held:
            yield "getsockname", str(held.getsockname())
            with suppress(OSError):
                yield "getpeername", str(held.getpeername())
            yield from read_options(held)


def read_options(held: socket.socket) -> Iterator[tuple[str, str]]:
    """All options of a socket that can be read."""
    for level, number in LEVELS.items():
        for option in range(MOST_OPTIONS):
            # SO_PEERPIDFD makes a descriptor; SO_ERROR takes the error away; TCP_INFO counts, TCP_REPAIR_* need a mode.
            if (level, option) in (("SOCKET", 77), ("SOCKET", 4), ("TCP", 11), ("TCP", 35)):
                continue
            with suppress(OSError):
                yield f"{level} {option}", held.getsockopt(number, option, 256).hex()


def read_calls() -> Iterator[tuple[str, str]]:
    """What calls tell this thread."""
    for name, (option, size) in PRCTL.items():
        buffer = ctypes.create_string_buffer(max(size, 8))
        with suppress(OSError):
            found = call(157, option, buffer if size else 0, 0, 0, 0)
            yield f"prctl {name}", buffer.raw.hex() if size else str(found)
    for name, which in (("REAL", 0), ("VIRTUAL", 1), ("PROF", 2)):
        yield f"itimer {name}", str(signal.getitimer(which)[1])
    for name in (name for name in dir(resource) if name.startswith("RLIMIT_")):
        yield name, str(resource.getrlimit(getattr(resource, name)))
    yield "sigmask", str(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    yield "pending", str(sorted(signal.sigpending()))
    stack = ctypes.create_string_buffer(24)
    LIBC.sigaltstack(None, stack)
    yield "sigaltstack", stack.raw.hex()
    for number in range(1, 65):
        action = ctypes.create_string_buffer(32)
        with suppress(OSError):
            call(13, number, 0, action, 8)
            yield f"sigaction {number}", action.raw.hex()
    yield "affinity", str(sorted(os.sched_getaffinity(0)))
    yield "scheduler", str((os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, os.nice(0)))
    yield (
        "ids",
        str((os.getresuid(), os.getresgid(), os.getgroups(), os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0))),
    )
    yield "uname", str(os.uname())
    for name, read in {"ioprio": io_priority, "robust list": robust_list, "membarrier": membarrier}.items():
        with suppress(OSError):
            yield name, str(read())
    for name, code in (("FS", 0x1003), ("CPUID", 0x1011), ("XCOMP", 0x1022), ("SHSTK", 0x5005)):
        word = ctypes.c_uint64()
        with suppress(OSError):
            yield (
                f"arch_prctl {name}",
                f"{call(158, code, ctypes.byref(word) if name != 'CPUID' else 0)} {word.value:x}",
            )
    for name in ("CLOCK_PROCESS_CPUTIME_ID", "CLOCK_THREAD_CPUTIME_ID"):
        yield name, str(int(time.clock_gettime(getattr(time, name)) * 1e9))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    for name in ("ru_utime", "ru_stime", "ru_maxrss", "ru_minflt", "ru_nvcsw"):
        yield f"rusage {name}", str(getattr(usage, name))


def io_priority() -> int:
    """ioprio_get(2)."""
    return call(252, 1, 0)


def membarrier() -> int:
    """The registrations (MEMBARRIER_CMD_GET_REGISTRATIONS)."""
    return call(324, 1 << 9, 0, 0)


def robust_list() -> str:
    """get_robust_list(2)."""
    head, size = ctypes.c_uint64(), ctypes.c_uint64()
    call(274, 0, ctypes.byref(head), ctypes.byref(size))
    return f"{head.value:x} {size.value}"


def main() -> None:
    """Hold, then read at each request."""
    workdir = Path(sys.argv[1])
    burn = time.process_time() + 1.5
    while time.process_time() < burn:
        pass
    for number in (signal.SIGUSR1, signal.SIGIO):
        signal.signal(number, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 3600, 3600)
    held = hold(workdir)
    asked, signalled = threading.Event(), threading.Event()
    lines: dict[str, str] = {}

    def collect(prefix: str, reads: Callable[[], Iterator[tuple[str, str]]]) -> None:
        lines.update({f"{prefix}: {name}": value for name, value in reads()})

    def work() -> None:
        while asked.wait():
            asked.clear()
            collect("thread", lambda: read_files("/proc/thread-self"))
            collect("thread", read_calls)
            signalled.set()

    threading.Thread(target=work, daemon=True).start()
    program = Program(workdir)

    def step() -> None:
        if (workdir / "look").exists():
            (workdir / "look").unlink()
            lines.clear()
            collect("process", lambda: read_files("/proc/self"))
            collect("process", read_calls)
            for name, number in held.items():
                collect(name, lambda number=number: read_descriptor(number))  # type: ignore[misc]
            asked.set()
            signalled.wait(10)
            signalled.clear()
            (workdir / "found.new").write_text(json.dumps(lines))
            (workdir / "found.new").rename(workdir / "found.json")

    program.run(step)


if __name__ == "__main__":
    main()
