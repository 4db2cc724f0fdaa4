"""Dumps that CRIU refuses: the program's resource, the command of CRIU, and the expected cause."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from provoked.criu import criu

NOTHING: Final = "nothing"


@contextmanager
def terminal(workdir: Path) -> Iterator[None]:
    """WORKDIR/terminal is one that we hold."""
    master, slave = os.openpty()
    (workdir / "terminal").symlink_to(os.ttyname(slave))
    try:
        yield
    finally:
        os.close(master)
        os.close(slave)


@contextmanager
def receiver(workdir: Path) -> Iterator[None]:
    """WORKDIR/peer.sock takes datagrams."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(str(workdir / "peer.sock"))
        yield


def never() -> bool:
    """Every machine has what the row needs."""
    return False


def tracks_pages() -> bool:
    """This kernel has soft-dirty."""
    words = [str(criu()), "check", "--feature", "mem_dirty_track"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def has_apparmor() -> bool:
    """This kernel has AppArmor."""
    return Path("/sys/kernel/security/apparmor").exists()


@dataclass(frozen=True)
class Dump:
    """One refusal. `{pid}`, `{workdir}` and `{images}` are filled in everywhere.

    `says` is part of the sentence, `options` are CRIU's besides those of crckpt, `under` is what CRIU is started by and
    `within` what the program is started by, so that it lies `depth` generations below. `beside` is there meanwhile.
    It is not tried on machines that `unless` finds.
    """

    cause: str
    kind: str = NOTHING
    says: str = ""
    options: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    depth: int = 0
    answers: bool = True
    unless: Callable[[], bool] = never
    beside: Callable[[Path], AbstractContextManager[object]] = nullcontext

    @property
    def is_plain(self) -> bool:
        """Whether any program does."""
        return self.kind == NOTHING and not self.within

    @property
    def name(self) -> str:
        """The name of the test."""
        return "-".join((self.cause, self.kind, *(word for word in self.options if word.startswith("--"))))


def without(*capabilities: str) -> tuple[str, ...]:
    """CRIU is started with all capabilities but these."""
    words = ",".join(f"-{name}" for name in capabilities)
    return ("setpriv", f"--bounding-set={words}", f"--inh-caps={words}")


def on_tmpfs(options: str) -> tuple[str, ...]:
    """CRIU sees the directory of the images as such a tmpfs."""
    return ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} none {{images}} && exec "$@"', "sh")


# CRIU stores in /run what it knows about the kernel. With an empty /run it has to test the kernel again.
WITHOUT_CACHE: Final = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh")
NOBODY: Final = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
# Unmounts /dev/shm and /run/netns, because CRIU would fail if other tests change them during a dump.
_REMOVE_SHARED: Final = "while umount /dev/shm; do :; done 2> /dev/null; umount --lazy /run/netns 2> /dev/null"
OWN_MOUNTS: Final = ("unshare", "--mount", "sh", "-c", f'{_REMOVE_SHARED}; exec "$@"', "sh")
NO_LOCK: Final = ("--network-lock", "skip")
INSIDE: Final = ("sh", "-c", '"$@" --tree $$; exit $?', "sh")
BEHIND_SHELL: Final = ("sh", "-c", 'setsid "$@" & wait', "sh")

MEMORY: Final = (
    Dump("secretmem", "secret_memory", "secret memory"),
    Dump("io-uring", "io_uring", "io_uring"),
    Dump("unknown-mapping", "perf_map", "maps anon_inode:[perf_event]"),
    Dump("uprobes", "uprobe", "process {pid} is watched"),
    Dump("device-map", "device_map", "PID {pid} maps a device at "),
    Dump("sysv-shm", "sysv_shm"),
    Dump("no-dirty-tracking", options=("--track-mem",), unless=tracks_pages),
    Dump("parent-directory", options=("--prev-images-dir", "../none")),
)
FILES: Final = (
    Dump("device", "fuse", "fd 3 is a device or special file that CRIU cannot save: chr 10:229"),
    Dump("mount-lookup", "detached_mount", "/file (fd 4)"),
    Dump("file-hidden", "hidden_file", within=OWN_MOUNTS),
    Dump("other-name", "other_name", "{workdir}/file is open"),
    Dump("deleted-large", "deleted_large", "{workdir}/large is deleted but still open, and has 2097152 bytes"),
    Dump("long-path", "deep_file", "of an open file"),
    Dump("locks", "flock"),
    Dump("watch", "proc_watch"),
    Dump("epoll-closed", "epoll_of_another", "PID {pid}"),
    Dump("pidfd-outside", "pidfd_outside", "outside it"),
    Dump("pidfd-thread", "pidfd_thread"),
    Dump("packet-pipe", "packet_pipe"),
)
SOCKETS: Final = (
    Dump("tcp-established", "tcp_pair"),
    Dump("tcp-in-flight", "tcp_in_flight"),
    Dump("tcp-repair", "tcp_pair", options=("--tcp-established", *NO_LOCK), under=without("net_admin")),
    Dump(
        "packets-not-held",
        "tcp_pair",
        options=("--tcp-established", "--network-lock", "nftables"),
        under=without("net_admin"),
    ),
    Dump("protocol", "mptcp", "IP protocol 262"),
    Dump("socket-family", "vsock", "family 40"),
    Dump("corked", "corked"),
    Dump("packet-multicast", "packet_membership_twice"),
    Dump("unix-outside", "unix_sends_outside", beside=receiver),
    Dump("in-message-descriptors", "credentials_on_their_way"),
    Dump("unix-in-flight", "unix_in_flight"),
    Dump("netlink-data", "netlink_unread"),
    Dump("netlink-groups", "netlink_groups"),
    Dump("tun", "tun"),
)
PLACES: Final = (
    Dump("nested-namespace", "child_in_namespace", "has its own uts namespace"),
    Dump("no-namespace-init", within=("unshare", "--pid", "--fork", *BEHIND_SHELL), depth=2),
    Dump("session-outside", says="process {pid}", within=("unshare", "--pid", "--fork"), depth=1),
    Dump(
        "foreign-user-namespace",
        options=NO_LOCK,
        within=("unshare", "--net", "unshare", "--user", "--map-root-user"),
    ),
    Dump("mount-kind", "hugetlbfs", "the file system at {workdir}/huge", within=OWN_MOUNTS),
    Dump("mount-bound", "bound_from_nowhere", "{workdir}/bound is a bind mount", within=OWN_MOUNTS),
    Dump("shell-job", within=("sh", "-c", '"$@" & wait', "sh"), depth=1),
    Dump("terminal-outside", "terminal_outside", beside=terminal),
)
PROCESSES: Final = (
    Dump("inside", under=INSIDE),
    Dump("no-space", under=on_tmpfs("size=16k")),
    Dump("read-only", under=on_tmpfs("ro")),
    Dump("cannot-trace", "traced", "process {pid} cannot be stopped"),
    Dump("cannot-trace", "without_leader", "process {pid} cannot be stopped"),
    Dump("cannot-trace", says="process {pid} cannot be stopped", under=without("sys_ptrace")),
    Dump("thread-leader-gone", "child_without_leader"),
    Dump("freeze-timeout", "vforked", options=("--timeout", "1"), answers=False),
    Dump("groups", "many_groups", "a process of the tree is in more groups than CRIU can save"),
    Dump("freezer-path", options=("--freeze-cgroup", "/tmp")),
    Dump("no-privileges", under=NOBODY),
    Dump("not-permitted", under=(*WITHOUT_CACHE, *without("sys_admin"))),
    Dump("no-loopback", says="loopback", under=(*WITHOUT_CACHE, "unshare", "--net")),
)
OPTIONS: Final = (
    Dump("page-server", options=("--page-server", "--address", "127.0.0.1", "--port", "1")),
    Dump(
        "server-name",
        says="nowhere.invalid is not a known host",
        options=("--page-server", "--address", "nowhere.invalid", "--port", "1"),
    ),
    Dump("streamer", options=("--stream",)),
    Dump("cgroup-properties", options=("--cgroup-props", "nonsense")),
    Dump("security-module", options=("--lsm-profile", "apparmor:none"), unless=has_apparmor),
    Dump("script", options=("--action-script", "/bin/false")),
    Dump("arguments", options=("--network-lock", "nonsense")),
    Dump("configuration", options=("--config", "/etc/passwd")),
    Dump("images-directory", options=("--images-dir", "/nonexistent")),
    Dump("log-file", says="the log /nonexistent/log cannot be created", options=("--log-file", "/nonexistent/log")),
)
DUMPS: Final = (*MEMORY, *FILES, *SOCKETS, *PLACES, *PROCESSES, *OPTIONS)
