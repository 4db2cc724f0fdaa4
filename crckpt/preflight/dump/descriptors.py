"""Check the open descriptors of a tree before a dump: anonymous inodes, devices, namespaces, BPF maps."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor
from crckpt.preflight.dump.namespaces import find_known_namespaces, shares_namespace

# CRIU saves these. Source: criu/files.c:498, dump_one_file.
_ANONYMOUS = ("bpf-map", "eventfd", "eventpoll", "fanotify", "inotify", "pidfd", "signalfd", "timerfd")
# Device numbers. Source: Documentation/admin-guide/devices.txt.
_TUN = (10, 200)
_AUTOFS = (10, 235)
_MEMORY_DEVICES = 1  # null, zero, full, random, urandom ...
# Major numbers of which every device is a terminal. Source: criu/tty.c, get_tty_driver.
_TERMINALS = (188, 204, *range(128, 144))
# Major numbers of which only these minor numbers are terminals. Source: criu/tty.c, get_tty_driver.
_CONSOLES = {5: range(3), 4: range(1, 64)}
# Devices that CRIU saves if it has their plugin.
_OF_PLUGINS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
_BPF_MAP = re.compile(r"^map_type:\t(\d+)$", re.MULTILINE)
# A hash or an array: enum bpf_map_type, linux/bpf.h.
_BPF_MAP_SAVED = re.compile(r"^map_type:\t[12]$", re.MULTILINE)
# CLOCK_REALTIME_ALARM and CLOCK_BOOTTIME_ALARM, in the fdinfo of a timerfd (criu/timerfd.c, verify_timerfd).
_ALARM_CLOCK = re.compile(r"^clockid: ([89])$", re.MULTILINE)
_NAMESPACE = re.compile(r"(?:cgroup|ipc|mnt|net|pid|time|user|uts):\[(\d+)\]")


def find_blockers(observed: Observed) -> Iterator[Finding]:
    """Find descriptors that CRIU cannot save."""
    for descriptor in observed.descriptors:
        yield from _find_unsaved(descriptor, observed)
        if clock := _ALARM_CLOCK.search(descriptor.info):
            yield cause("timerfd-clock").finding(clock=clock[1])


def find_warnings(observed: Observed) -> Iterator[Finding]:
    """Find descriptors that a restore does not bring back as they were."""
    for descriptor in observed.descriptors:
        values = {"pid": descriptor.pid, "fd": descriptor.fd, "path": descriptor.target}
        # CRIU saves the counter, but not this flag: a read after the restore takes the whole counter.
        if "eventfd-semaphore: 1" in descriptor.info:
            yield cause("eventfd-semaphore").finding(**values)
        if descriptor.target == "anon_inode:bpf-map":
            yield cause("bpf-map-support").finding(**values)


def find_unread(observed: Observed) -> Iterator[Finding]:
    """Find descriptors with unread data that CRIU does not save."""
    for unread in observed.unread:
        yield cause("unread").finding(pid=unread.pid, fd=unread.fd, kind=unread.what)


def _find_unsaved(descriptor: Descriptor, observed: Observed) -> Iterator[Finding]:
    """Find what CRIU refuses. Source: criu/files.c, dump_one_file."""
    kind, _, name = descriptor.target.partition(":")
    # The order matters: the first case that applies explains most.
    if descriptor.target == "anon_inode:[io_uring]":
        yield cause("io-uring").finding()
    elif descriptor.target == "anon_inode:[pidfd]":
        yield from _find_unsaved_pidfd(descriptor, observed.strangers)
    elif descriptor.target == "anon_inode:bpf-map" and not _BPF_MAP_SAVED.search(descriptor.info):
        map_type = _BPF_MAP.search(descriptor.info)
        yield cause("bpf-map").finding(**({"type": map_type[1]} if map_type else {}))
    elif kind == "anon_inode" and name.strip("[]") not in _ANONYMOUS:
        yield cause("device").finding(fd=descriptor.fd, what=f"anon {descriptor.target}")
    elif stat.S_ISFIFO(descriptor.mode) and descriptor.flags & os.O_DIRECT:
        # CRIU saves a named pipe in packet mode, but cannot open it so again.
        yield cause("packet-pipe").finding()
    elif descriptor.is_namespace and descriptor.target.startswith("/"):
        yield cause("namespace-mounted").finding(pid=descriptor.pid, fd=descriptor.fd, path=descriptor.target)
    # CRIU names a namespace by a process that is in it.
    elif (inode := _NAMESPACE.fullmatch(descriptor.target)) and int(inode[1]) not in find_known_namespaces(observed):
        yield cause("namespace-outside").finding(inode=inode[1])
    elif stat.S_ISCHR(descriptor.mode):
        yield from _find_unsaved_device(descriptor, observed)
    elif stat.S_ISBLK(descriptor.mode):
        yield cause("device").finding(fd=descriptor.fd, what=f"unknown {descriptor.target}")


def _find_unsaved_pidfd(descriptor: Descriptor, strangers: Iterable[int]) -> Iterator[Finding]:
    if descriptor.flags & os.O_EXCL:  # PIDFD_THREAD, linux/pidfd.h
        yield cause("pidfd-thread").finding()
    for pid in strangers:
        if f"\nPid:\t{pid}\n" in descriptor.info:
            yield cause("pidfd-outside").finding(pid=pid)


def _find_unsaved_device(descriptor: Descriptor, observed: Observed) -> Iterator[Finding]:
    number = os.major(descriptor.device), os.minor(descriptor.device)
    major, minor = number
    is_terminal = major in _TERMINALS or minor in _CONSOLES.get(major, ())
    is_saved = major == _MEMORY_DEVICES or number == _AUTOFS or is_terminal or descriptor.target.startswith(_OF_PLUGINS)
    if number == _TUN:
        # CRIU makes the interface again, but only in a network namespace that it makes, too (criu/tun.c:306).
        if shares_namespace(observed, "net"):
            yield cause("tun").finding()
    elif not is_saved:
        yield cause("device").finding(fd=descriptor.fd, what=f"chr {major}:{minor}")
