"""Rare resources, each in use: special files, devices, rare sockets, a pidfd, a filter of system calls."""

import ctypes
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Final, NoReturn

from selfcheck import Program, fork

DEVICES: Final = {"/dev/null": b"", "/dev/zero": bytes(8), "/dev/full": bytes(8)}
RANDOM: Final = ("/dev/random", "/dev/urandom")
NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
UNENTERED: Final = ("user",)
"""Nobody enters a user namespace that they are in already."""
EXPERIMENT: Final = 0x88B5
"""A protocol of packets that nobody else sends."""
SOCK_PACKET: Final = 10
SOL_PACKET: Final = 263
PACKET_ADD_MEMBERSHIP: Final = 1
PACKET_DROP_MEMBERSHIP: Final = 2
PACKET_FANOUT: Final = 18
PROMISCUOUS: Final = struct.pack("IHH8x", socket.if_nametoindex("lo"), 1, 0)
ENDED_WITH: Final = 7
SYS_FANOTIFY_INIT: Final = 300
SYS_FANOTIFY_MARK: Final = 301
PR_SET_NO_NEW_PRIVS: Final = 38
PR_SET_SECCOMP: Final = 22
PR_GET_SECCOMP: Final = 21
FILTER: Final = 2
FAN_MARK_ADD: Final = 1
FAN_CLOSE_WRITE: Final = 8
ALLOW: Final = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)  # BPF_RET | BPF_K, SECCOMP_RET_ALLOW
DENY_ACCT: Final = (  # the call acct(2), by its number
    struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 163) + struct.pack("HBBI", 6, 0, 0, 0x50001)
)
LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Files:
    """Descriptors that name no regular file to read."""

    def __init__(self, workdir: Path) -> None:
        """Open all files."""
        (workdir / "named").write_bytes(b"content")
        self.directory = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
        self.path = os.open(workdir / "named", os.O_PATH)
        self.of_proc = os.open("/proc/self/comm", os.O_RDONLY)
        self.devices = {name: os.open(name, os.O_RDWR) for name in (*DEVICES, *RANDOM)}
        self.inode = os.fstat(self.path).st_ino
        self.namespaces = {kind: os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES}

    def verify(self, program: Program) -> None:
        """Check that each file is still what it was."""
        program.expect("named" in os.listdir(self.directory), "the directory has other names")  # noqa: PTH208
        program.expect(os.fstat(self.path).st_ino == self.inode, "O_PATH names another file")
        program.expect(os.pread(self.of_proc, 99, 0).startswith(b"python"), "the file of /proc differs")
        for kind, namespace in self.namespaces.items():
            same = os.path.sameopenfile(namespace, os.open(f"/proc/self/ns/{kind}", os.O_RDONLY))
            program.expect(same, f"the {kind} namespace is another")
            program.expect(LIBC.setns(namespace, 0) == 0 or kind in UNENTERED, f"nobody can enter the {kind} namespace")
        for name, content in DEVICES.items():
            program.expect(os.read(self.devices[name], 8) == content, f"{name} is not itself")
        for name in RANDOM:
            program.expect(any(os.read(self.devices[name], 32)), f"{name} is not itself")


class Sockets:
    """Sockets beside streams, each bound to itself where it can be."""

    def __init__(self) -> None:
        """Open all sockets."""
        self.udp = [_bound(family, host) for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))]
        self.raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self.raw6 = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        self.netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self.netlink.bind((0, 0))
        self.packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.bound = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        self.bound.bind(("lo", EXPERIMENT))
        self.bound.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, PROMISCUOUS)
        self.bound.setsockopt(SOL_PACKET, PACKET_FANOUT, os.getpid() & 0xFFFF)
        self.old = socket.socket(socket.AF_PACKET, SOCK_PACKET, socket.htons(EXPERIMENT))
        self.seqpacket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def verify(self, program: Program) -> None:
        """Check that the sockets answer."""
        for found in self.udp:
            found.sendto(b"to myself", found.getsockname())
            program.expect(found.recv(100) == b"to myself", "UDP lost its name")
        request = struct.pack("IHHIIB3x", 20, 18, 0x301, 1, 0, 0)  # RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP
        self.netlink.send(request)
        program.expect(b"lo\0" in self.netlink.recv(1 << 16), "netlink does not know the loopback interface")
        self.bound.sendto(b"a packet", ("lo", EXPERIMENT, 0, 0, bytes(6)))
        for found in (self.bound, self.old):
            found.settimeout(30)
            program.expect(found.recv(100).endswith(b"a packet"), f"no packet came over {found}")
        self.bound.setsockopt(SOL_PACKET, PACKET_DROP_MEMBERSHIP, PROMISCUOUS)
        fanout = self.bound.getsockopt(SOL_PACKET, PACKET_FANOUT)
        program.expect(fanout == os.getpid() & 0xFFFF, f"the packet socket has fanout {fanout}")
        self.seqpacket[0].send(b"a message")
        program.expect(self.seqpacket[1].recv(100) == b"a message", "seqpacket is no pair")
        kinds = [(found.family, found.type) for found in (self.raw, self.raw6, self.packet)]
        wanted = [(family, socket.SOCK_RAW) for family in (socket.AF_INET, socket.AF_INET6, socket.AF_PACKET)]
        program.expect(kinds == wanted, f"raw sockets are {kinds}")
        self.raw.sendto(b"\x08\0\xf7\xff\0\0\0\0", ("127.0.0.1", 0))  # an echo request
        self.raw.settimeout(30)
        program.expect(len(self.raw.recv(100)) >= 28, "nothing came over the raw socket")


def main() -> None:
    """Hold all of it; on request check that each works."""
    workdir = Path(sys.argv[1])
    files, sockets = Files(workdir), Sockets()
    group = _checked(LIBC.syscall(SYS_FANOTIFY_INIT, 2, os.O_RDONLY))  # FAN_NONBLOCK
    watched = os.fsencode(workdir / "named")
    _checked(LIBC.syscall(SYS_FANOTIFY_MARK, group, FAN_MARK_ADD, ctypes.c_ulong(FAN_CLOSE_WRITE), -100, watched))
    ended = fork(lambda: os._exit(ENDED_WITH))
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    stopped = fork(_stop)
    os.waitid(os.P_PID, stopped, os.WSTOPPED | os.WNOWAIT)
    child = fork(lambda: _restricted(workdir))
    pidfd = os.pidfd_open(child)
    program = Program(workdir, parts=("restricted",))

    def verify() -> bool:
        files.verify(program)
        sockets.verify(program)
        with (workdir / "named").open("ab"):
            pass
        program.expect(bool(os.read(group, 1 << 12)), "fanotify saw nothing")
        program.expect(os.waitpid(ended, 0) == (ended, ENDED_WITH << 8), "who had ended did so otherwise")
        program.expect(os.waitpid(stopped, os.WNOHANG) == (0, 0), "who was stopped has ended")
        os.kill(stopped, signal.SIGCONT)
        program.expect(os.waitpid(stopped, 0) == (stopped, ENDED_WITH << 8), "who was stopped did not go on")
        program.expect(not select.select([pidfd], [], [], 0)[0], "the pidfd's process has ended")
        return True

    program.run(lambda: None, verify)


def _stop() -> NoReturn:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(ENDED_WITH)


def _restricted(workdir: Path) -> NoReturn:
    """Start a child that may gain nothing and may not make every call."""
    program = Program(workdir, "restricted")
    _checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    code = ctypes.create_string_buffer(DENY_ACCT + ALLOW)
    _checked(LIBC.prctl(PR_SET_SECCOMP, FILTER, struct.pack("HxxxxxxQ", 4, ctypes.addressof(code))))

    def verify() -> bool:
        program.expect(LIBC.prctl(PR_GET_SECCOMP) == FILTER, "the filter of calls is gone")
        program.expect(LIBC.syscall(163, None) < 0 and ctypes.get_errno() == 1, "the filter lets through")
        return True

    program.run(lambda: None, verify)


def _bound(family: socket.AddressFamily, host: str) -> socket.socket:
    found = socket.socket(family, socket.SOCK_DGRAM)
    found.bind((host, 0))
    found.settimeout(30)
    return found


def _checked(returned: int) -> int:
    if returned < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return returned


if __name__ == "__main__":
    main()
