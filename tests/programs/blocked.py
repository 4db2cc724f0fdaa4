"""A counter that holds something that CRIU cannot save, or saves only in part: `blocked.py WORKDIR KIND`.

Each kind is a function; the program keeps what it returns. If a kind needs a process outside the tree, that process
ends with WORKDIR. Mounts are at WORKDIR/mount. Exit status 77: this kernel or machine lacks what the kind needs.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from bpf_maps import bpf_array, bpf_filter, bpf_queue
from foreign_sockets import foreign_datagrams, foreign_socket, foreign_unix_socket
from limited import (
    alarm_timer,
    current_terminal,
    deep_file,
    full_addresses,
    full_descriptors,
    full_maps,
    left_mounts,
    long_groups,
    many_groups,
    nested_pids,
    own_dev,
    part_of_segment,
    shared_descriptors,
    shared_directories,
)
from not_restored import (
    changed_vdso,
    owner_inside,
    owner_outside,
    owner_thread,
    path_of_socket,
    removed_attributes,
    signals_above_limit,
    unmapped,
)
from oddities import LIBC, PAGE, answered, called, checked, mapped, mounted, outside, pause, unshared, wait
from selfcheck import Program, fork

LACKING: Final = 77
# asm/unistd_64.h: x86-64, aarch64; from number 424 on, all machines count alike.
EXIT, CLONE, PERF_EVENT_OPEN = {"x86_64": (60, 56, 298), "aarch64": (93, 220, 241)}[os.uname().machine]
IO_URING_SETUP: Final = 425
OPEN_TREE: Final = 428
PIDFD_OPEN: Final = 434
MEMFD_SECRET: Final = 447
MSEAL: Final = 462
# linux/sched.h
CLONE_NEWTIME: Final = 0x80
CLONE_VM: Final = 0x100
CLONE_VFORK: Final = 0x4000
CLONE_NEWNS: Final = 0x20000
CLONE_NEWCGROUP: Final = 0x2000000
CLONE_NEWNET: Final = 0x40000000
AT_FDCWD: Final = -100
IN_CREATE: Final = 0x100
MNT_DETACH: Final = 2
NETLINK_ADD_MEMBERSHIP: Final = 1
PTRACE_SEIZE: Final = 0x4206
SOL_NETLINK: Final = 270
TUNSETIFF: Final = 0x400454CA
IFF_TUN: Final = 0x1001  # with IFF_NO_PI
# linux/userfaultfd.h
USERFAULTFD: Final = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
UFFDIO_API: Final = 0xC018AA3F
UFFDIO_REGISTER: Final = 0xC020AA00
UDP_CORK: Final = 1


def main() -> None:
    """Open the resource and count."""
    workdir, kind = Path(sys.argv[1]), sys.argv[2]
    try:
        held = KINDS[kind](workdir)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            sys.exit(LACKING)
        raise
    program = Program(workdir)

    def step() -> None:
        program.facts["held"] = held is not None
        if kind == "sealed":
            program.facts["sealed"] = " sl" in Path("/proc/self/smaps").read_text()

    program.run(step)


def block_device(_: Path) -> int:
    """A block device."""
    return os.open("/dev/loop0", os.O_RDONLY)


def character_device(_: Path) -> int:
    """A character device that CRIU does not know."""
    return os.open("/dev/fuse", os.O_RDWR)


def corked(_: Path) -> socket.socket:
    """A UDP socket that holds data back."""
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
    return sock


def detached(workdir: Path) -> int:
    """A file on a mount that is mounted nowhere."""
    (workdir / "there").touch()
    tree = called(OPEN_TREE, AT_FDCWD, os.fsencode(workdir), 1)
    fd = os.open("there", os.O_RDONLY, dir_fd=tree)
    os.close(tree)
    return fd


def device_map(_: Path) -> int:
    """A map of a disk."""
    fd = os.open("/dev/loop0", os.O_RDONLY)
    address = mapped(fd, prot=mmap.PROT_READ)
    os.close(fd)
    return address


def epoll_of_closed(workdir: Path) -> object:
    """An epoll that watches a descriptor that is closed here and still open outside."""
    one, other = os.pipe()
    watching = select.epoll()
    watching.register(one, select.EPOLLIN)
    outside(workdir, lambda: one)
    os.close(one)
    return watching, other


def epoll_of_reused(workdir: Path) -> object:
    """An epoll that watches a closed descriptor whose number is now that of another file."""
    watched = os.eventfd(0)
    watching = select.epoll()
    watching.register(watched, select.EPOLLIN)
    outside(workdir, lambda: watched)
    os.dup2(os.eventfd(0), watched)
    return watching


def foreign_namespace(workdir: Path) -> int:
    """A descriptor of another process's namespace."""
    return os.open(f"/proc/{outside(workdir, lambda: unshared(CLONE_NEWNET))}/ns/net", os.O_RDONLY)


def harmless(workdir: Path) -> object:
    """Resources that look like kinds of this program, and that CRIU saves."""
    one, other = os.pipe()
    watching = select.epoll()
    watching.register(one, select.EPOLLIN)
    kept = os.dup(one)
    os.close(one)
    ended = fork(lambda: os._exit(0))
    corpse = called(PIDFD_OPEN, ended, 0)
    os.waitpid(ended, 0)
    (workdir / "symlink").symlink_to("nowhere")
    (workdir / "renamed").touch()
    renamed = os.open(workdir / "renamed", os.O_RDONLY)
    (workdir / "renamed").rename(workdir / "name (deleted)")
    notes = checked(LIBC.inotify_init1(os.O_CLOEXEC))
    for watched in (workdir, Path("/dev")):
        checked(LIBC.inotify_add_watch(notes, os.fsencode(watched), IN_CREATE))
    return (
        *(watching, other, kept, corpse, renamed, notes),
        *(os.open(path, os.O_RDONLY) for path in ("/proc/self/ns/net", "/proc/1/status", "/dev/kmsg", "/dev/null")),
        os.open(workdir / "symlink", os.O_PATH | os.O_NOFOLLOW),
        called(PIDFD_OPEN, os.getpid(), 0),
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        socket.socket(socket.AF_INET, socket.SOCK_RAW, 89),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        netlink_groups(workdir, group=1),
        socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
        mmap.mmap(-1, PAGE),
    )


def hidden_directory(workdir: Path) -> bool:
    """A working directory under a mount."""
    (workdir / "mount").mkdir()
    os.chdir(workdir / "mount")
    return mounted(workdir / "mount")


def hidden_file(workdir: Path) -> int:
    """A file under a mount, with another file of its name above it."""
    path = workdir / "mount/file"
    path.parent.mkdir()
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    mounted(path.parent)
    path.touch()
    return fd


def hidden_gone(workdir: Path) -> int:
    """A file under a mount, without another file of its name."""
    fd = hidden_file(workdir)
    (workdir / "mount/file").unlink()
    return fd


def hidden_map(workdir: Path) -> int:
    """A mapped file under a mount."""
    fd = hidden_file(workdir)
    os.ftruncate(fd, PAGE)
    address = mapped(fd)
    os.close(fd)
    return address


def io_uring_map(_: Path) -> int:
    """A ring without a descriptor."""
    fd = called(IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
    address = mapped(fd)
    os.close(fd)
    return address


def message_queue(workdir: Path) -> int:
    """A POSIX message queue: its file system is not mounted."""
    name = f"/{workdir.name}".encode()
    fd = int(LIBC.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None))
    LIBC.mq_unlink(name)
    return fd


def nested(namespace: int) -> Callable[[Path], int]:
    """A kind: a child in its own namespace."""

    def kind(_: Path) -> int:
        read_end, tell = os.pipe()

        def child() -> NoReturn:
            unshared(namespace)
            pause(tell)

        return answered(child, read_end, tell)

    return kind


def netlink_groups(_: Path, group: int = 33) -> socket.socket:
    """A netlink socket in groups from number 33 on."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    sock.bind((0, 0))
    sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    return sock


def netlink_unbound(_: Path) -> socket.socket:
    """A netlink socket in a group, but bound to no port."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, 1)
    return sock


def netlink_unread(_: Path) -> socket.socket:
    """The unread answer to a request for all links (RTM_GETLINK, a dump)."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    sock.bind((0, 0))
    sock.send(struct.pack("=IHHIIBxHiII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0))
    return sock


def overmounted(workdir: Path) -> int:
    """A file on a mount under another."""
    path = workdir / "mount/file"
    path.parent.mkdir()
    mounted(path.parent)
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    mounted(path.parent)
    return fd


def packet_pipe(_: Path) -> object:
    """A pipe in packet mode."""
    return os.pipe2(os.O_DIRECT)


def perf_map(_: Path) -> int:
    """The ring of a software counter (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK)."""
    attributes = ctypes.create_string_buffer(struct.pack("<IIQ", 1, 112, 0), 112)
    fd = called(PERF_EVENT_OPEN, attributes, 0, -1, -1, 0)
    address = mapped(fd, 2 * PAGE)
    os.close(fd)
    return address


def pidfd_outside(workdir: Path) -> int:
    """A pidfd of a process outside the tree."""
    return called(PIDFD_OPEN, outside(workdir, lambda: True), 0)


def pidfd_thread(_: Path) -> int:
    """A pidfd of a thread."""
    return called(PIDFD_OPEN, os.getpid(), os.O_EXCL)


def program_in_memory(_: Path) -> subprocess.Popen[bytes]:
    """A process that executes a memory file."""
    program = os.memfd_create("program")
    os.write(program, Path("/bin/sleep").read_bytes())
    return subprocess.Popen(["sleep", "1000"], executable=f"/proc/self/fd/{program}", pass_fds=(program,))


def sealed(_: Path) -> int:
    """Sealed memory."""
    address = mapped(-1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    called(MSEAL, ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0)
    return address


def secret_memory(_: Path) -> int:
    """Secret memory (memfd_secret)."""
    fd = called(MEMFD_SECRET, 0)
    os.ftruncate(fd, PAGE)
    address = mapped(fd)
    os.close(fd)
    return address


def shared_lock(workdir: Path) -> int:
    """A lock of a file that a process outside got from us."""
    fd = os.open(workdir / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    (workdir / "outside").write_text(str(outside(workdir, lambda: fd)))
    return fd


def shared_memory(_: Path) -> int:
    """A process with all of its parent's memory (CLONE_VM) and its own stack, in which it waits for ever."""
    stack = mapped(-1, 16 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return checked(LIBC.clone(LIBC.pause, ctypes.c_void_p(stack + 16 * PAGE), CLONE_VM | signal.SIGCHLD, None))


def system_v_memory(_: Path) -> int:
    """System V memory of the host; it is removed with its last user."""
    segment = checked(LIBC.shmget(0, 4 * PAGE, 0o1600))
    address = int(LIBC.shmat(segment, None, 0))
    LIBC.shmctl(segment, 0, None)
    return address


def terminals(workdir: Path) -> object:
    """Two terminals, of which another process has the other sides."""
    pairs = [os.openpty() for _ in range(2)]
    outside(workdir, lambda: pairs)
    for master, _ in pairs:
        os.close(master)
    return pairs


def thread_leader_gone(_: Path) -> int:
    """A child whose main thread has ended, while another runs."""
    read_end, tell = os.pipe()

    def child() -> NoReturn:
        leader = Path(f"/proc/self/task/{os.getpid()}/stat")

        def other() -> None:
            wait(lambda: ") Z " in leader.read_text())
            pause(tell)

        threading.Thread(target=other).start()
        called(EXIT, 0)
        os._exit(1)

    return answered(child, read_end, tell)


def thread_traced(_: Path) -> int:
    """A child of which another child traces the second thread."""
    read_end, tell = os.pipe()

    def threads() -> NoReturn:
        threading.Thread(target=lambda: pause(tell, threading.get_native_id())).start()
        time.sleep(60)
        os._exit(1)

    thread = answered(threads, read_end, tell)
    read_end, tell = os.pipe()

    def tracer() -> NoReturn:
        LIBC.ptrace(PTRACE_SEIZE, thread, None, None)
        pause(tell)

    return answered(tracer, read_end, tell)


def time_namespace(_: Path) -> bool:
    """Another time namespace for children."""
    return unshared(CLONE_NEWTIME)


def trapped(_: Path) -> bool:
    """A pending SIGTRAP."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
    os.kill(os.getpid(), signal.SIGTRAP)
    return True


def tunnel(_: Path) -> int:
    """A network device of the program."""
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"", IFF_TUN))
    return fd


def unaccepted(workdir: Path) -> socket.socket:
    """A TCP connection that nobody accepts."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()

    def connect() -> socket.socket:
        listener.close()
        return socket.create_connection(address)

    outside(workdir, connect)
    return listener


def unix_nameless(workdir: Path) -> socket.socket:
    """A datagram socket whose peer is outside and has no name."""
    one, other = socket.socketpair(type=socket.SOCK_DGRAM)

    def keep() -> socket.socket:
        one.close()
        return other

    outside(workdir, keep)
    other.close()
    return one


def unserved_memory(workdir: Path) -> int:
    """Memory whose pages a program outside must provide (userfaultfd), and never does."""
    fd = called(USERFAULTFD, os.O_CLOEXEC)
    fcntl.ioctl(fd, UFFDIO_API, bytearray(struct.pack("<QQQ", 0xAA, 0, 0)))
    address = mapped(-1, 4 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # UFFDIO_REGISTER_MODE_MISSING
    fcntl.ioctl(fd, UFFDIO_REGISTER, bytearray(struct.pack("<QQQQ", address, 4 * PAGE, 1, 0)))
    outside(workdir, lambda: fd)
    os.close(fd)
    return address


def unix_client_gone(workdir: Path) -> socket.socket:
    """A unix connection that nobody accepts, and whose client has gone."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(workdir / "socket"))
    listener.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(workdir / "socket"))
        client.sendall(b"request")
    return listener


def unix_client_waits(workdir: Path) -> tuple[socket.socket, ...]:
    """A unix connection that nobody accepts, and whose client has sent a request."""
    listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listener.bind(str(workdir / "socket"))
    listener.listen()
    client.connect(str(workdir / "socket"))
    client.sendall(b"request")
    return listener, client


def unread_credentials(_: Path) -> tuple[socket.socket, ...]:
    """A message that comes with the user of its sender."""
    one, other = socket.socketpair(socket.AF_UNIX)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    one.sendall(b"request")
    return one, other


def vfork(_: Path) -> int:
    """A child that waits in vfork for its own child to start a program, which it never does."""
    read_end, tell = os.pipe()

    def child() -> NoReturn:
        # Both run in one memory: the child of the child must not return from here, nor the child wake up.
        called(CLONE, CLONE_VM | CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0)
        pause(tell)

    return answered(child, read_end, tell)


def watch(_: Path) -> int:
    """A watch of a directory on a file system without handles."""
    fd = checked(LIBC.inotify_init1(os.O_CLOEXEC))
    checked(LIBC.inotify_add_watch(fd, b"/proc/self", IN_CREATE))
    return fd


def watch_by_fanotify(_: Path) -> int:
    """A watch by fanotify of a directory on a file system without handles."""
    fd = checked(LIBC.fanotify_init(0, os.O_RDONLY))
    # FAN_MARK_ADD, FAN_MODIFY
    checked(LIBC.fanotify_mark(fd, 1, ctypes.c_uint64(2), AT_FDCWD, b"/proc/self"))
    return fd


def watch_of_file_system(workdir: Path) -> int:
    """A mark of a whole file system."""
    fd = checked(LIBC.fanotify_init(0, os.O_RDONLY))
    # FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CLOSE_WRITE
    checked(LIBC.fanotify_mark(fd, 0x101, ctypes.c_uint64(8), AT_FDCWD, os.fsencode(workdir)))
    return fd


def watch_of_removed(workdir: Path) -> object:
    """A watch of a removed file in memory, which has no path any more."""
    (workdir / "mount").mkdir()
    mounted(workdir / "mount")
    path = workdir / "mount/file"
    held = os.open(path, os.O_CREAT | os.O_RDWR)
    fd = checked(LIBC.inotify_init1(os.O_CLOEXEC))
    checked(LIBC.inotify_add_watch(fd, os.fsencode(path), IN_CREATE))
    path.unlink()
    return held, fd


KINDS: Final[dict[str, Callable[[Path], object]]] = {
    kind.__name__: kind
    for kind in (
        *(bpf_array, bpf_filter, bpf_queue),
        *(block_device, changed_vdso, character_device, corked, detached, device_map),
        *(epoll_of_closed, epoll_of_reused, foreign_namespace),
        *(foreign_datagrams, foreign_socket, foreign_unix_socket),
        *(
            harmless,
            hidden_directory,
            hidden_file,
            hidden_gone,
            hidden_map,
            io_uring_map,
            message_queue,
            netlink_groups,
            netlink_unbound,
        ),
        *(netlink_unread, overmounted, packet_pipe, perf_map, pidfd_outside, pidfd_thread, sealed, secret_memory),
        *(
            shared_lock,
            shared_memory,
            system_v_memory,
            terminals,
            thread_leader_gone,
            thread_traced,
            time_namespace,
            trapped,
        ),
        *(alarm_timer, current_terminal, deep_file, full_addresses, full_descriptors, full_maps, long_groups),
        *(left_mounts, many_groups, nested_pids, own_dev, part_of_segment, shared_descriptors, shared_directories),
        *(tunnel, unaccepted, unix_nameless, unserved_memory, vfork, watch, watch_by_fanotify, watch_of_removed),
        *(owner_inside, owner_outside, owner_thread, path_of_socket, removed_attributes, signals_above_limit),
        *(program_in_memory, unix_client_gone, unix_client_waits, unread_credentials, watch_of_file_system),
    )
} | {
    "nested_cgroup": nested(CLONE_NEWCGROUP),
    "nested_mount": nested(CLONE_NEWNS),
    "nested_network": nested(CLONE_NEWNET),
    "unmapped_vdso": unmapped("[vdso]"),
    "unmapped_vvar": unmapped("[vvar]", "[vvar_vclock]"),
}


if __name__ == "__main__":
    main()
