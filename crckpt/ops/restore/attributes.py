"""Put the recorded attributes of a tree back in a restore's hold, before the tree runs.

In the hold the tree's tasks wait in CRIU's code, with all the rights of CRIU and no seccomp filter: CRIU sets both
later. So the kernel does not refuse a system call that is made there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.errors import RestoreFailed
from crckpt.host import proc
from crckpt.host.attributes import sockets as socket_options
from crckpt.host.attributes import tasks
from crckpt.host.proc import procfs
from crckpt.host.proc.cgroup import read_cgroups
from crckpt.host.process import cgroups
from crckpt.host.syscalls import keyctl
from crckpt.host.syscalls.pidfd_getfd import borrow_each
from crckpt.images.sockets import UnixSocket
from crckpt.preflight.attribute_record import ATTRIBUTES, BY_NAME, AttributeRecord, AttributeValue, ControlGroup
from crckpt.preflight.restore.attributes import (
    AttributeVerdict,
    HostAttributes,
    RecordedSocket,
    ThreadAttributes,
    attributes_to_set,
    judge_attributes,
    recorded_sockets,
    shares_session,
)

if TYPE_CHECKING:
    from crckpt.host.attributes.remote_calls import Order
    from crckpt.images.tree import ImageTree

_REFUSED = (OSError, ValueError, OverflowError, struct.error)
"""What a setter raises for what the kernel refuses, and for a number that is none of the kernel's."""


class PutBack(Struct, frozen=True):
    """What a restore puts back in its hold, and what was judged of that before. `allow_weaker` is the user's choice.

    In seclusion a tree has other network interfaces: what sockets cannot have for that is not said.
    """

    record: AttributeRecord | None
    tree: ImageTree
    host: HostAttributes
    verdict: AttributeVerdict
    allow_weaker: bool = False
    in_seclusion: bool = False

    @property
    def needs_session(self) -> bool:
        """Whether CRIU must be started in another session keyring than ours: see `enter_session`."""
        return not self.verdict.is_in_session

    def enter_session(self) -> None:
        """Leave our session keyring, if the tree is not to have it. Raises OSError."""
        if self.needs_session:
            keyctl.join_new()

    def __call__(self, init: int | None) -> tuple[Finding, ...]:
        """Do it; what could not be done. The tree is in our PID namespace, or in that of the process `init`.

        Raises RestoreFailed if something that protects is lost, and that is not allowed.
        """
        if self.record is None:
            return ()
        found = _Restored(self.tree, init)
        failed = [*found.set(tuple(attributes_to_set(self.record, self.tree, self.host)))]
        failed.extend(found.move(self.verdict.moves))
        of_sockets = found.put_back_sockets(tuple(recorded_sockets(self.record, self.tree)))
        failed.extend(told for told in of_sockets if told.key == "protection-lost" or not self.in_seclusion)
        protecting = [told for told in failed if told.key == "protection-lost"]
        if protecting and not self.allow_weaker:
            raise RestoreFailed(f"{protecting[0].what}; nothing is left behind", hint=protecting[0].remedy)
        return tuple({(told.key, told.what.partition(" of ")[0]): told for told in reversed(failed)}.values())


def prepare(
    record: AttributeRecord | None, tree: ImageTree, *, allow_weaker: bool, in_seclusion: bool = False
) -> PutBack:
    """Look at what a restored tree meets here. In seclusion it has other control groups, whatever they were."""
    session = keyctl.own_session()
    if record is None:
        verdict = AttributeVerdict(is_in_session=shares_session(None, tree, session))
        return PutBack(None, tree, HostAttributes(frozenset()), verdict, allow_weaker)
    if in_seclusion:
        record = msgspec.structs.replace(record, groups=())
    restricting = {group.id for members in record.groups for group in members if group.restricts}
    host = HostAttributes(
        cpus=tasks.cpus(),
        session=session,
        restricts=_least(cgroups.restrictions(*place) for place in read_cgroups("self")),
        old_groups={
            place: cgroups.restrictions(*place) for place in restricting if cgroups.directory(*place) is not None
        },
    )
    return PutBack(record, tree, host, judge_attributes(record, tree, host), allow_weaker, in_seclusion)


def _least(found: Iterable[dict[str, int]]) -> dict[str, int]:
    least: dict[str, int] = {}
    for restricts in found:
        for name, limit in restricts.items():
            least[name] = min(limit, least.get(name, limit))
    return least


class _Restored:
    """The tasks of a restored tree, which wait for the end of the hold."""

    def __init__(self, tree: ImageTree, init: int | None) -> None:
        self._init = init
        self._pids = proc.outer_pids((process.pid for process in tree.processes), init)

    def set(self, wanted: tuple[ThreadAttributes, ...]) -> Iterator[Finding]:
        """Set what differs; what could not be set."""
        orders: list[tuple[ThreadAttributes, Order]] = []
        for pid, of_process in _by_process(wanted).items():
            tids = self._tids(pid)
            for thread in of_process:
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
                        yield from _set(attribute.name, tid, value, thread)
                if inside:
                    orders.append((thread, _order(self._pids[pid], tid, inside)))
        yield from _entered(orders)

    def _tids(self, pid: int) -> dict[int, int]:
        """What we call the threads of a process."""
        here = self._pids.get(pid)
        if here is None:
            return {}
        with suppress(OSError):
            listed = procfs.threads(here)
            return {tid if self._init is None else proc.inner_tid(here, tid): tid for tid in listed}
        return {}

    def move(self, moves: tuple[tuple[int, ControlGroup], ...]) -> Iterator[Finding]:
        """Move processes to their old groups; what could not be moved."""
        for pid, group in moves:
            where = cgroups.directory(group.controllers, group.path)
            if pid not in self._pids:
                continue
            try:
                if where is None:
                    raise FileNotFoundError(0, "it is gone")
                (where / "cgroup.procs").write_text(str(self._pids[pid]))
            except OSError as error:
                title, why = f"the control group {group.path}", error.strerror or error
                yield cause("protection-lost").told(title=title, pid=pid, why=why)

    def put_back_sockets(self, wanted: tuple[RecordedSocket, ...]) -> Iterator[Finding]:
        """Put back the options and memberships of sockets, and who listens; what could not be put back."""
        by_process: dict[int, dict[int, RecordedSocket]] = {}
        for each in wanted:
            by_process.setdefault(each.pid, {})[each.fd] = each
        listening: list[tuple[RecordedSocket, Order]] = []
        for pid, held in by_process.items():
            here = self._pids.get(pid, 0)
            for fd, ours in borrow_each(here, held):
                for lost in socket_options.put_back(ours, held[fd].record):
                    yield _socket_lost(held[fd], lost.title, lost.why, protects=lost.protects)
                if _has_lost_its_owner(ours, held[fd]):
                    listening.append((held[fd], _listen_again(here, held[fd])))
        yield from _listened(listening)


def _has_lost_its_owner(ours: int, found: RecordedSocket) -> bool:
    if not (found.record.is_listening and isinstance(found.file, UnixSocket) and found.file.is_listening):
        return False
    with suppress(OSError):
        return socket_options.owner(ours) != found.record.owner
    return False


def _listen_again(here: int, found: RecordedSocket) -> Order:
    """The kernel remembers who listened last: the process that has the socket does so, with the rights of its owner."""
    backlog = found.file.backlog if isinstance(found.file, UnixSocket) else 0
    return _order(here, here, [("listener", (found.fd, backlog, *found.record.owner))])


def _listened(listening: list[tuple[RecordedSocket, Order]]) -> Iterator[Finding]:
    if not listening:
        return
    from crckpt.host.attributes.remote_calls import enter

    for (found, _), answer in zip(listening, enter([order for _, order in listening]), strict=True):
        for why in (answer.why, *(why for _, why in answer.failed)):
            if why:
                yield _socket_lost(found, "the owner", why, protects=True)


def _socket_lost(found: RecordedSocket, title: str, why: str, *, protects: bool) -> Finding:
    if protects:
        return cause("protection-lost").told(title=f"{title} of descriptor {found.fd}", pid=found.pid, why=why)
    return cause("socket-option-lost").told(title=title, fd=found.fd, pid=found.pid, why=why)


def _by_process(wanted: tuple[ThreadAttributes, ...]) -> dict[int, list[ThreadAttributes]]:
    found: dict[int, list[ThreadAttributes]] = {}
    for thread in wanted:
        found.setdefault(thread.pid, []).append(thread)
    return found


def _has(name: str, tid: int, value: AttributeValue) -> bool:
    """Whether that is so already. What cannot be read is set, unless it was nothing."""
    reader = tasks.OF_THREAD.get(name) or tasks.OF_PROCESS.get(name)
    if reader is None:
        return not any(value)
    with suppress(OSError, ValueError):
        return reader(tid) == value
    return not value


def _set(name: str, tid: int, value: AttributeValue, thread: ThreadAttributes) -> Iterator[Finding]:
    try:
        tasks.SETTERS[name](tid, value)
    except _REFUSED as error:
        yield _lost(name, thread, str(getattr(error, "strerror", None) or error))


def _order(pid: int, tid: int, values: list[tuple[str, AttributeValue]]) -> Order:
    from crckpt.host.attributes.remote_calls import Order

    return Order(pid, tid, "set", tuple(values), is_lent=True)


def _entered(orders: list[tuple[ThreadAttributes, Order]]) -> Iterator[Finding]:
    if not orders:
        return
    from crckpt.host.attributes.remote_calls import enter

    for (thread, order), answer in zip(orders, enter([order for _, order in orders]), strict=True):
        if answer.why:
            yield from (_lost(name, thread, answer.why) for name, _ in order.values)
        yield from (_lost(name, thread, why) for name, why in answer.failed)


def _lost(name: str, thread: ThreadAttributes, why: str) -> Finding:
    attribute = BY_NAME[name]
    key = "protection-lost" if attribute.protects else "attribute-lost"
    return cause(key).told(title=attribute.title, tid=thread.tid, pid=thread.pid, why=why)
