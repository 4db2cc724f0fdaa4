"""Check the open descriptors of a tree before a dump: pipes, terminals, devices, namespaces, anonymous inodes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.descriptors import group_by_pipe, is_read_end, is_write_end
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor
from crckpt.host.proc.procfs import DELETED
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
# Of pipes that the tree reads, and as many named ones: NR_PIPES_WITH_DATA, criu/include/pipes.h. Empty ones count.
_MOST_PIPES = 1024
_PTY = re.compile(r"/dev/pts/(\d+)")
_LAST_PTY = 1000  # MAX_PTY_INDEX, criu/tty.c


def judge_descriptors(observed: Observed) -> Iterator[Finding]:
    """Find descriptors that CRIU cannot save, or that a restore does not bring back as they were."""
    for descriptor in observed.descriptors:
        values = {"pid": descriptor.pid, "fd": descriptor.fd, "path": descriptor.target}
        yield from _find_unsaved(descriptor, observed)
        if clock := _ALARM_CLOCK.search(descriptor.info):
            yield cause("timerfd-clock").finding(clock=clock[1])
        # CRIU saves the counter, but not this flag: a read after the restore takes the whole counter.
        if "eventfd-semaphore: 1" in descriptor.info:
            yield cause("eventfd-semaphore").finding(**values)
        if descriptor.target == "anon_inode:bpf-map":
            yield cause("bpf-map-support").finding(**values)
    for unread in observed.unread:
        yield cause("unread").finding(pid=unread.pid, fd=unread.fd, kind=unread.what)
    for lost in observed.lost_owners:
        key = "signal-thread" if lost.is_thread else "signal-outside"
        kind = "process group" if lost.is_group else "process"
        yield cause(key).finding(pid=lost.pid, fd=lost.fd, owner=lost.owner, kind=kind)
    yield from _judge_pipes(observed)
    yield from _judge_terminals(observed)


def outside_terminals(observed: Observed) -> tuple[Descriptor, ...]:
    """Return descriptors of terminals whose other side the tree does not hold."""
    sessions = {process.pid: process.sid for process in observed.tree.processes}
    # The link of a master has no number, but its fdinfo has that of the slave.
    inside = {f"/dev/pts/{found.tty_index}" for found in observed.descriptors if found.tty_index is not None}
    outside = []
    for found in observed.descriptors:
        if found.target.startswith("/dev/pts/"):
            # A deleted one has no other side any more.
            is_outside = not found.target.endswith(DELETED) and found.target not in inside
        else:
            # CRIU opens a console by its name, and /dev/tty in its session: outside if its session is.
            is_outside = found.target.startswith(("/dev/tty", "/dev/console")) and sessions[found.pid] not in sessions
        if is_outside and not found.is_master:
            outside.append(found)
    return tuple(outside)


def _judge_pipes(observed: Observed) -> Iterator[Finding]:
    read = tuple(filter(is_read_end, observed.descriptors))
    # A pipe's target is unique; a named pipe's target is its path.
    named = {end.target for end in read if stat.S_ISFIFO(end.mode) and not end.target.startswith("pipe:[")}
    for count, what in ((len(group_by_pipe(read)), "pipes"), (len(named), "named pipes")):
        if count > _MOST_PIPES:
            yield cause("pipes-too-many").finding(count=count, what=what)
    for inode, ends in group_by_pipe(observed.descriptors).items():
        is_inside = any(map(is_read_end, ends)) and any(map(is_write_end, ends))
        # If nobody has the other end, the restored pipe is as it was.
        if not is_inside and inode not in observed.closed_pipes:
            key = "outside-pipe" if is_write_end(ends[0]) else "outside-pipe-read"
            yield cause(key).finding(fd=ends[0].fd, pid=ends[0].pid)


def _judge_terminals(observed: Observed) -> Iterator[Finding]:
    # "Only one slave external peer is allowed" (criu/tty.c:419): a restore can give the tree only one.
    if len({found.target for found in outside_terminals(observed) if found.target.startswith("/dev/pts/")}) > 1:
        yield cause("terminal-outside").finding()
    comms = {process.pid: process.comm for process in observed.tree.processes}
    for found in observed.unsaved_current:
        yield cause("terminal-current").finding(process=f"process {found.pid} ({comms[found.pid]})")
    # A process gets it at its fork or as the leader of a session, and CRIU opens terminals when all processes are there
    # (criu/tty.c, tty_restore_ctl_terminal). A tree without the leader joins the session of CRIU.
    living = [process for process in observed.tree.processes if process.terminal and not process.has_ended]
    if without := [process for process in living if process.sid != process.pid and process.sid in comms]:
        others = f" and {len(without) - 1} more" if len(without) > 1 else ""
        yield cause("terminal-of-leader").finding(process=f"process {without[0].pid} ({without[0].comm}){others}")
    for path in sorted({found.target for found in observed.descriptors}):
        if (number := _PTY.fullmatch(path)) and int(number[1]) > _LAST_PTY:
            yield cause("terminal-large").finding(path=path)


def _find_unsaved(descriptor: Descriptor, observed: Observed) -> Iterator[Finding]:
    """Find what CRIU refuses. Source: criu/files.c, dump_one_file."""
    kind, _, name = descriptor.target.partition(":")
    # The order matters: the first case that applies explains most.
    if descriptor.target == "anon_inode:[io_uring]":
        yield cause("io-uring").finding()
    elif descriptor.target == "anon_inode:[pidfd]":
        if descriptor.flags & os.O_EXCL:  # PIDFD_THREAD, linux/pidfd.h
            yield cause("pidfd-thread").finding()
        outside = (pid for pid in observed.strangers if f"\nPid:\t{pid}\n" in descriptor.info)
        yield from (cause("pidfd-outside").finding(pid=pid) for pid in outside)
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
    elif stat.S_ISCHR(descriptor.mode) or stat.S_ISBLK(descriptor.mode):
        yield from _find_unsaved_device(descriptor, observed)


def _find_unsaved_device(descriptor: Descriptor, observed: Observed) -> Iterator[Finding]:
    number = major, minor = os.major(descriptor.device), os.minor(descriptor.device)
    is_terminal = major in _TERMINALS or minor in _CONSOLES.get(major, ())
    is_saved = major == _MEMORY_DEVICES or number == _AUTOFS or is_terminal or descriptor.target.startswith(_OF_PLUGINS)
    if stat.S_ISBLK(descriptor.mode):
        yield cause("device").finding(fd=descriptor.fd, what=f"unknown {descriptor.target}")
    elif number == _TUN:
        # CRIU makes the interface again, but only in a network namespace that it makes, too (criu/tun.c:306).
        if shares_namespace(observed, "net"):
            yield cause("tun").finding()
    elif not is_saved:
        yield cause("device").finding(fd=descriptor.fd, what=f"chr {major}:{minor}")
