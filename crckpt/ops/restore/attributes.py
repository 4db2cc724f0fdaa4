"""Complete a restored tree in the hold, before it runs: its memory, its open files, its recorded attributes.

In the hold (criu/cr-restore.c:2180) the tasks wait in CRIU's code. They have CRIU's rights and no seccomp filter, which
CRIU sets later (2216), so the kernel refuses no system call there.
"""

from __future__ import annotations

import fcntl
import secrets
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.helper.calls.remote_calls import Order, carry_out
from crckpt.host import proc
from crckpt.host.attributes import sockets as socket_options
from crckpt.host.attributes import tasks
from crckpt.host.attributes.descriptors import DescriptorRecord, restore_descriptor
from crckpt.host.attributes.pipes import PipeRecord, restore_owner
from crckpt.host.attributes.signal_owners import remove_owner
from crckpt.host.network.packet_filter import read_packet_rules
from crckpt.host.proc import procfs
from crckpt.host.proc.fd import read_info
from crckpt.host.proc.file_users import parse_locks
from crckpt.host.process import cgroups
from crckpt.host.process.cgroups import read_cgroups
from crckpt.host.process.pidfd import borrow_each
from crckpt.host.syscalls import own_process
from crckpt.images.sockets import UnixSocket
from crckpt.ops.restore.images import ImageStreams, fill_memory
from crckpt.ops.restore.open_files import RecordedFiles, check_open_files
from crckpt.preflight.attribute_record import ATTRIBUTE_BY_NAME, ATTRIBUTES, AttributeRecord, AttributeValue, GroupMoves
from crckpt.preflight.restore.attributes import (
    AttributeVerdict,
    HostAttributes,
    RecordedSocket,
    ThreadAttributes,
    attributes_to_set,
    find_recorded_pipes,
    find_recorded_sockets,
    find_separate_sessions,
    find_status_flags,
    judge_attributes,
    shares_session,
)

if TYPE_CHECKING:
    from crckpt.images.processes import FileLock
    from crckpt.images.tree import ImageTree

# What a setter raises if the kernel refuses the value, or if the value is no number that the kernel takes.
_REFUSED = (OSError, ValueError, OverflowError, struct.error)

_LOCK_NUMBERS: Final = 4 * 64  # of one order: a process gets some seconds for each

_Subject = TypeVar("_Subject")


class AttributeRestore(Struct, frozen=True):
    """The attributes that a restore sets in the hold, and the verdict of the preflight on them.

    `allow_weaker` is the user's choice. `is_isolated`: in a rehearsal the tree has other network interfaces, so losses
    of socket options are not reported.
    """

    record: AttributeRecord | None
    tree: ImageTree
    host: HostAttributes
    verdict: AttributeVerdict
    allow_weaker: bool = False
    is_isolated: bool = False

    @property
    def needs_session(self) -> bool:
        """Whether CRIU must be started in another session keyring than ours: see `enter_session`."""
        return not self.verdict.is_in_session

    def enter_session(self) -> None:
        """Leave our session keyring, if the tree must not have it. Raises OSError."""
        if self.needs_session:
            own_process.join_new()

    def set_all(self, init: int | None) -> tuple[Finding, ...]:
        """In the hold: set the attributes, and return what was lost.

        The tree is in our PID namespace, or in that of the process `init`. Raises RestoreFailed if a protection is
        lost and the user does not allow that.
        """
        tree = _RestoredTree(self.tree, init)
        losses = [*tree.separate_sessions(find_separate_sessions(self.tree))]
        losses.extend(tree.silence_leases(self.tree.silent_leases))
        losses.extend(tree.set_status_flags(find_status_flags(self.tree)))
        if self.record is not None:
            losses.extend(tree.set(attributes_to_set(self.record, self.tree, self.host)))
            losses.extend(tree.move(self.verdict.moves))
            of_sockets = tree.set_sockets(find_recorded_sockets(self.record, self.tree))
            losses.extend(loss for loss in of_sockets if loss.key == "protection-lost" or not self.is_isolated)
            losses.extend(tree.set_pipes(find_recorded_pipes(self.record, self.tree)))
            losses.extend(tree.set_descriptors(self.record.descriptors))
        protections = [loss for loss in losses if loss.key == "protection-lost"]
        if protections and not self.allow_weaker:
            raise RestoreFailed(protections[0].what, state=NOTHING_LEFT, hint=protections[0].remedy)
        # Report only the first loss of each kind: a tree may have thousands of threads.
        return tuple({(loss.key, loss.get("attribute")): loss for loss in reversed(losses)}.values())


def prepare_tree(
    attributes: AttributeRestore, init: int | None, streams: ImageStreams | None, recorded: RecordedFiles
) -> tuple[Finding, ...]:
    """In the hold: take the locks of a tree that CRIU has lost, fill its memory, check its open files, set its
    attributes, and return what was lost.

    The tree is in our PID namespace, or in that of the process `init`. Raises RestoreFailed, IntegrityError, OSError if
    it must not run.
    """
    # Others can take the locks until then.
    _RestoredTree(attributes.tree, init).take_locks(attributes.tree.locks)
    fill_memory(attributes.tree, init, streams)
    # A rehearsal may lose attributes, but shows what a restore would find in the files.
    allow_weaker = attributes.allow_weaker and not attributes.is_isolated
    weaker = check_open_files(attributes.tree, recorded, init, allow_weaker=allow_weaker)
    return (*weaker, *attributes.set_all(init))


def plan_attributes(
    record: AttributeRecord | None, tree: ImageTree, *, allow_weaker: bool, is_isolated: bool = False
) -> AttributeRestore:
    """Compare the recorded attributes with this host. In a rehearsal (`is_isolated`) no groups are restored."""
    session = own_process.own_session()
    if record is None:
        verdict = AttributeVerdict(is_in_session=shares_session(None, tree, session))
        return AttributeRestore(None, tree, HostAttributes(frozenset()), verdict, allow_weaker, is_isolated)
    if is_isolated:
        record = msgspec.structs.replace(record, groups=())
    # A group without limits protects nothing: the tree can stay in ours.
    restricting = {group.id for members in record.groups for group in members if group.restricts}
    existing = {place: where for place in restricting if (where := cgroups.group_directory(*place)) is not None}
    rules = read_packet_rules()
    restricts: dict[str, int] = {}
    for place in read_cgroups("self"):
        for name, limit in rules.find_restrictions(*place).items():
            restricts[name] = min(limit, restricts.get(name, limit))
    host = HostAttributes(
        cpus=tasks.online_cpus(),
        session=session,
        restricts=restricts,
        old_groups={place: rules.find_restrictions(*place) for place in existing},
        frozen=frozenset(place for place, where in existing.items() if cgroups.find_frozen_group(where)),
    )
    return AttributeRestore(record, tree, host, judge_attributes(record, tree, host), allow_weaker, is_isolated)


class _RestoredTree:
    """The tasks of a restored tree, which wait for the end of the hold."""

    def __init__(self, tree: ImageTree, init: int | None) -> None:
        self._init = init
        self._pids = proc.outer_pids((process.pid for process in tree.processes), init)

    def take_locks(self, locks: Iterable[FileLock]) -> None:
        """Take the POSIX locks that the processes no longer have. Raises RestoreFailed if one is taken."""
        # CRIU takes them, and then maps files, for which it closes a descriptor of each (criu/cr-restore.c:646,
        # criu/pie/restorer.c:918): the kernel releases all POSIX locks on a file of which a process closes one.
        lost: dict[int, list[int]] = {}
        of_processes = (lock for lock in locks if lock.kind == "POSIX")
        for (pid, fd), wanted in groupby(of_processes, lambda lock: (lock.pid, lock.fd)):
            held: set[FileLock] = set()
            with suppress(OSError):
                held.update(parse_locks(read_info(self._pids.get(pid, 0), fd), pid, fd))
            for lock in wanted:
                if lock not in held:
                    kind = fcntl.F_WRLCK if lock.exclusive else fcntl.F_RDLCK
                    length = 0 if lock.end is None else lock.end - lock.start + 1
                    lost.setdefault(pid, []).extend((fd, kind, lock.start, length))
        orders = []
        for pid, values in lost.items():
            here = self._pids.get(pid, 0)
            for at in range(0, len(values), _LOCK_NUMBERS):
                some = (("locks", tuple(values[at : at + _LOCK_NUMBERS])),)
                orders.append((pid, Order(here, here, "set", some, is_lent=True)))
        for pid, _, why in _carry_out(orders):
            error = f"a POSIX lock of PID {pid} cannot be taken again: {why}"
            raise RestoreFailed(error, state=NOTHING_LEFT, hint=cause("lock-taken").finding().remedy)

    def separate_sessions(self, firsts: dict[int, int]) -> Iterator[Finding]:
        """Give these processes new session keyrings, each with those of the same first process; yield those without."""
        # All threads of a process have the same one, and to join it needs its name.
        names = {first: tuple(secrets.token_hex(16).encode()) for first in firsts.values()}
        orders = [
            (
                ThreadAttributes(pid, inside, {}),
                Order(self._pids[pid], tid, "set", (("session_keyring", names[first]),), is_lent=True),
            )
            for pid, first in firsts.items()
            for inside, tid in self._tids(pid).items()
        ]
        yield from (_attribute_lost(*failed) for failed in _carry_out(orders))

    def silence_leases(self, leases: Iterable[tuple[int, int]]) -> Iterator[Finding]:
        """Let nobody get the signals of these leases: the kernel has made who took them the owner."""
        for pid, fd in leases:
            for _, ours in borrow_each(self._pids.get(pid, 0), (fd,)):
                try:
                    remove_owner(ours)
                except OSError as error:
                    title = f"the owner of the lease of descriptor {fd}"
                    yield cause("protection-lost").finding(title=title, pid=pid, why=error.strerror)

    def set_status_flags(self, wanted: Iterable[tuple[int, int, int]]) -> Iterator[Finding]:
        """Add flags to descriptors as F_SETFL does; yield those to which they could not be added."""
        # The process must do it itself: the signals tell by which descriptor it turned them on.
        orders = [
            ((pid, fd), Order(here, here, "set", (("status_flags", (fd, flags)),), is_lent=True))
            for pid, fd, flags in wanted
            if (here := self._pids.get(pid, 0))
        ]
        for (pid, fd), _, why in _carry_out(orders):
            yield cause("socket-option-lost").finding(title="flags (F_SETFL)", fd=fd, pid=pid, why=why)

    def set(self, wanted: Iterable[ThreadAttributes]) -> Iterator[Finding]:
        """Set the attributes that differ; yield what could not be set."""
        # Collect the orders of all threads for one helper process, which takes 0.1 s to start.
        orders: list[tuple[ThreadAttributes, Order]] = []
        for pid, threads in groupby(wanted, key=lambda thread: thread.pid):
            tids = self._tids(pid)
            for thread in threads:
                if (tid := tids.get(thread.tid)) is None:
                    continue
                inside = []
                for attribute in ATTRIBUTES:
                    value = thread.values.get(attribute.name)
                    if value is None or _has(attribute.name, tid, value):
                        continue
                    if attribute.back == "inside":
                        inside.append((attribute.name, value))
                    elif attribute.back == "outside":
                        try:
                            tasks.SETTERS[attribute.name](tid, value)
                        except _REFUSED as error:
                            yield _attribute_lost(
                                thread, attribute.name, str(getattr(error, "strerror", None) or error)
                            )
                if inside:
                    orders.append((thread, Order(self._pids[pid], tid, "set", tuple(inside), is_lent=True)))
        yield from (_attribute_lost(*failed) for failed in _carry_out(orders))

    def _tids(self, pid: int) -> dict[int, int]:
        """The TIDs that the threads of a process have for us, by those that they have for the tree."""
        here = self._pids.get(pid)
        if here is not None:
            with suppress(OSError):
                listed = procfs.threads(here)
                return {tid if self._init is None else proc.inner_tid(here, tid): tid for tid in listed}
        return {}

    def move(self, moves: GroupMoves) -> Iterator[Finding]:
        """Move processes to their old control groups; yield those that could not be moved."""
        for pid, group in moves:
            where = cgroups.group_directory(group.controllers, group.path)
            if pid not in self._pids:
                continue
            try:
                if where is None:
                    raise FileNotFoundError(0, "it is gone")
                (where / "cgroup.procs").write_text(str(self._pids[pid]))
            except OSError as error:
                title, why = f"the control group {group.path}", error.strerror or error
                yield cause("protection-lost").finding(title=title, pid=pid, why=why)

    def set_sockets(self, wanted: Iterable[RecordedSocket]) -> Iterator[Finding]:
        """Set the options, memberships and owners of sockets; yield what could not be set."""
        by_process: dict[int, dict[int, RecordedSocket]] = {}
        for each in wanted:
            by_process.setdefault(each.pid, {})[each.fd] = each
        listening: list[tuple[RecordedSocket, Order]] = []
        for pid, sockets in by_process.items():
            here = self._pids.get(pid, 0)  # 0 if the process has gone: then nothing is borrowed
            for fd, ours in borrow_each(here, sockets):
                found = sockets[fd]
                for lost in socket_options.restore_socket(ours, found.record):
                    yield _socket_lost(found, lost.title, lost.why, protects=lost.protects)
                file = found.file
                if found.record.is_listening and isinstance(file, UnixSocket) and file.is_listening:
                    with suppress(OSError):
                        if socket_options.owner(ours) != found.record.owner:
                            # The kernel's record of the owner is who called listen() last: let the process call it,
                            # with the owner's rights.
                            values = (("listener", (fd, file.backlog, *found.record.owner)),)
                            listening.append((found, Order(here, here, "set", values, is_lent=True)))
        for socket, _, why in _carry_out(listening):
            yield _socket_lost(socket, "the owner", why, protects=True)

    def set_pipes(self, wanted: Iterable[tuple[int, int, PipeRecord]]) -> Iterator[Finding]:
        """Set the owners of pipes; yield what could not be set."""
        for pid, end, record in wanted:
            for fd, ours in borrow_each(self._pids.get(pid, 0), (end,)):
                try:
                    restore_owner(ours, record)
                except OSError as error:
                    title = "the owner of a pipe"
                    yield cause("socket-option-lost").finding(title=title, fd=fd, pid=pid, why=error.strerror)

    def set_descriptors(self, wanted: tuple[DescriptorRecord, ...]) -> Iterator[Finding]:
        """Set the state of timers and terminals; yield what could not be set."""
        for record in wanted:
            here = self._pids.get(record.pid, 0)
            for fd, ours in borrow_each(here, (record.fd,)):
                try:
                    restore_descriptor(ours, here, record)
                except OSError as error:
                    title = "the time of a timer" if record.due else "the state of a terminal"
                    yield cause("socket-option-lost").finding(title=title, fd=fd, pid=record.pid, why=error.strerror)


def _carry_out(orders: list[tuple[_Subject, Order]]) -> Iterator[tuple[_Subject, str, str]]:
    """Carry out orders; yield the subject of each value that could not be set, its name, and why."""
    if not orders:
        return
    for (subject, order), answer in zip(orders, carry_out([order for _, order in orders]), strict=True):
        yield from ((subject, name, answer.why) for name, _ in order.values if answer.why)
        yield from ((subject, name, why) for name, why in answer.failed if why)


def _socket_lost(found: RecordedSocket, title: str, why: str, *, protects: bool) -> Finding:
    if protects:
        titles = {"title": f"{title} of descriptor {found.fd}", "attribute": title}
        return cause("protection-lost").finding(**titles, pid=found.pid, why=why)
    return cause("socket-option-lost").finding(title=title, attribute=title, fd=found.fd, pid=found.pid, why=why)


def _has(name: str, tid: int, value: AttributeValue) -> bool:
    """Return whether a thread has that value already. What cannot be read counts as set if the value is empty."""
    reader = tasks.OF_THREAD.get(name) or tasks.OF_PROCESS.get(name)
    if reader is None:
        return not any(value)
    with suppress(OSError, ValueError):
        return reader(tid) == value
    return not value


def _attribute_lost(thread: ThreadAttributes, name: str, why: str) -> Finding:
    attribute = ATTRIBUTE_BY_NAME[name]
    key = "protection-lost" if attribute.protects else "attribute-lost"
    named = {"title": attribute.title, "attribute": name, "tid": thread.tid, "pid": thread.pid}
    return cause(key).finding(**named, why=why)
