"""Ask about a live tree: read what it needs of another host. Nothing is stopped or changed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from crckpt.host import machine, proc
from crckpt.host.disk.path_trust import find_group_name, find_user_name
from crckpt.host.network.packet_filter import read_packet_rules
from crckpt.host.observe.sock_diag import opened_file, read_unix_sockets
from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.observe.watches import find_watched_paths
from crckpt.host.opened import as_socket
from crckpt.host.proc import Descriptor, Process, procfs
from crckpt.host.proc.file_users import parse_locks
from crckpt.host.proc.net import InetRow, InetTable, LiveUnixSocket, read_inet, read_netlink
from crckpt.host.proc.procfs import DELETED
from crckpt.host.proc.status import read_status
from crckpt.host.process.pidfd import borrow_each
from crckpt.images import sockets
from crckpt.images.core import ALIVE, STOPPED, ZOMBIE
from crckpt.images.other_files import Pipe
from crckpt.migrate.preflight.asked_files import FileAsker
from crckpt.migrate.preflight.questions import (
    AskedFile,
    AskedName,
    AskedProcess,
    AskedProgram,
    AskedTerminal,
    MoveQuestions,
    TerminalKind,
)
from crckpt.migrate.preflight.recheck import Right, read_rights
from crckpt.migrate.wire.messages import RestoreOptions
from crckpt.ops.dump.details import Answers, record_attributes
from crckpt.ops.dump.examine import DumpTarget

_SELINUX, _APPARMOR = 1, 2  # images/inventory.proto
Answer = TypeVar("Answer")

_SECCOMP_FILTER: Final = 2
_MOST_TEXT: Final = 1000
_BY_DEFAULT: Final = RestoreOptions()

_TABLES: Final[tuple[InetTable, ...]] = ("tcp", "tcp6", "udp", "udp6")
_TYPES: Final[dict[int, str]] = {
    socket.SOCK_STREAM: sockets.STREAM,
    socket.SOCK_DGRAM: sockets.DATAGRAM,
    socket.SOCK_RAW: sockets.RAW,
    socket.SOCK_SEQPACKET: sockets.SEQPACKET,
}
_PROTOCOLS: Final[dict[int, str]] = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}
_ASKED: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_PACKET, socket.AF_NETLINK)
_ANY: Final[dict[int, str]] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104
_LONGEST_INTERFACE: Final = 16  # IFNAMSIZ, linux/if.h


def ask(
    target: DumpTarget, options: RestoreOptions = _BY_DEFAULT, *, sends_files: bool = False, transaction: str = ""
) -> MoveQuestions:
    """Ask about an examined tree, to be restored with these options. `transaction`: the name of one in our store."""
    return _Asking(target).questions(options, sends_files, transaction)


class _Asking:
    def __init__(self, target: DumpTarget) -> None:
        self._target = target
        self._observed = target.observed
        self._pids = {process.pid: process.ns_pids[-1] for process in self._observed.tree.processes}
        self._ids = iter(range(1, 1 << 62))
        self._files = FileAsker(self._ids)
        unix: dict[int, LiveUnixSocket] = {}
        # A kernel may have no unix_diag.
        with suppress(OSError):
            unix = read_unix_sockets()
        self._sockets = _SocketAsker(self._ids, unix, self._observed.sockets)
        self._terminals: dict[tuple[str, int], AskedTerminal] = {}
        self._pipes: dict[tuple[int, int], Pipe] = {}

    def questions(self, options: RestoreOptions, sends_files: bool, transaction: str) -> MoveQuestions:
        target, observed, program = self._target, self._observed, self._target.program
        own, root = dict(observed.own_namespaces), dict(observed.tree.root.namespaces)
        module = _SELINUX if machine.has_security_module("selinux") else 0
        if machine.has_security_module("apparmor"):
            module = _APPARMOR
        opened: dict[int, list[Descriptor]] = {}
        for found in observed.descriptors:
            opened.setdefault(found.pid, []).append(found)
        processes = tuple(
            self._process(process, opened.get(process.pid, []), module) for process in observed.tree.processes
        )
        locks = tuple(
            lock
            for found in observed.descriptors
            for lock in parse_locks(found.info, self._pids.get(found.pid, 0), found.fd)
        )
        files = self._files.list()
        return MoveQuestions(
            asked=time.time(),
            host=machine.describe_host(target.criu.version, target.criu.digest),
            job=target.job,
            processes=processes,
            namespaces=observed.own_namespaces,
            memory=observed.memory,
            files=files,
            sockets=self._sockets.list(),
            terminals=tuple(self._terminals.values()),
            pipes=tuple(self._pipes.values()),
            locks=tuple(dict.fromkeys(locks)),
            names=tuple(_names(read_rights(observed.tree.pids), processes, files)),
            closed_pipes=tuple(sorted(observed.closed_pipes)),
            # Those that can be read from outside: asking the processes would stop them for a moment.
            attributes=replace(record_attributes(observed.tree.root, Answers(rules=read_packet_rules())), asked=None),
            security_module=module,
            # Of a tree in another time namespace CRIU saves no clocks.
            has_clocks=machine.has_clocks() and own.get("time") == root.get("time"),
            program=AskedProgram(
                _text(program.executable),
                _text(program.called),
                _text(program.script) if program.script is not None else None,
                _text(program.unit),
            ),
            tcp=target.request.tcp,
            moved_addresses=options.addresses,
            allows_weaker=options.allow_weaker,
            tty=options.tty,
            sends_files=sends_files,
            lazy=options.lazy is not None,
            transaction=transaction,
            watched=tuple(os.fsencode(path) for path in find_watched_paths(observed.descriptors)),
        )

    def _process(self, process: Process, descriptors: list[Descriptor], module: int) -> AskedProcess:
        status: dict[str, str] = {}
        # Of a security module that confines the process.
        profile = ""
        with suppress(OSError):
            status = read_status(process.pid)
            profile = _text(procfs.text(f"/proc/{process.pid}/attr/current").strip("\0\n")) if module else ""
        threads = [process.ns_pids[-1]]
        for tid in process.threads:
            if tid != process.pid:
                with suppress(OSError):
                    threads.append(tid if len(process.ns_pids) == 1 else proc.inner_tid(process.pid, tid))
        opened = [(found.fd, number) for found in descriptors if (number := self._descriptor(found, process))]
        is_zombie = process.state == ZOMBIE
        mapped, exe, cwd, root = ((), None, None, None) if is_zombie else self._files.of_process(process.pid)
        return AskedProcess(
            pid=process.ns_pids[-1],
            ppid=self._pids.get(process.ppid, 0),
            pgid=self._inner(process, process.pgid),
            sid=self._inner(process, process.sid),
            comm=process.comm,
            state=ZOMBIE if is_zombie else STOPPED if process.state == "stopped" else ALIVE,
            threads=tuple(threads),
            uid=process.uids[0],
            euid=process.uids[1],
            gid=process.gids[0],
            egid=process.gids[1],
            groups=tuple(int(word) for word in status.get("Groups", "").split()),
            has_seccomp_filter=process.seccomp == _SECCOMP_FILTER,
            has_shadow_stack="shstk" in status.get("x86_Thread_features", ""),
            no_new_privs=status.get("NoNewPrivs", "0") != "0",
            profile=profile if profile != "unconfined" else "",
            namespaces=process.namespaces,
            descriptors=tuple(opened),
            mapped=mapped,
            exe=exe,
            cwd=cwd,
            root=root,
        )

    def _inner(self, process: Process, number: int) -> int:
        """The number of a group or session in the process's own PID namespace; 0 if it is outside of that."""
        if len(process.ns_pids) == 1:
            return number
        return self._pids.get(number, 0)

    def _descriptor(self, found: Descriptor, process: Process) -> int:
        """The id of what is open at a descriptor; 0 for a kind that needs nothing of the host."""
        if found.socket_inode:
            return self._sockets.ask(found)
        if found.target.startswith("pipe:["):
            key = int(found.target[6:-1]), found.flags & os.O_ACCMODE
            if key not in self._pipes:
                self._pipes[key] = Pipe(next(self._ids), key[0], found.flags & os.O_ACCMODE)
            return self._pipes[key].id
        if (kind := _terminal_kind(found)) is not None:
            return self._terminal(found, process, kind)
        return self._files.ask_descriptor(found)

    def _terminal(self, found: Descriptor, process: Process, kind: TerminalKind) -> int:
        path = found.target.removesuffix(DELETED)
        master = found.tty_index
        number = path.rpartition("/")[2]
        index = master if master is not None else int(number) if kind == "pty" and number.isdecimal() else None
        key = (path, index if index is not None else -1)
        if key not in self._terminals:
            has_leader = process.sid in self._pids
            self._terminals[key] = AskedTerminal(
                next(self._ids),
                os.fsencode(path),
                kind,
                index,
                is_master=master is not None,
                is_hung_up=found.target.endswith(DELETED),
                session=self._pids[process.sid] if has_leader and kind != "pty" else 0,
                flags=found.flags,
                file=self._files.ask_descriptor(found) or None if not path.startswith("/dev/pts/") else None,
            )
        return self._terminals[key].id


def _terminal_kind(found: Descriptor) -> TerminalKind | None:
    path = found.target.removesuffix(DELETED)
    if path.startswith("/dev/pts/") or found.is_master:
        return "pty"
    if path == "/dev/tty":
        return "current"
    if path == "/dev/console":
        return "console"
    if path.startswith("/dev/ttyS"):
        return "serial"
    return "virtual console" if path.startswith("/dev/tty") else None


def _names(
    rights: frozenset[Right], processes: Iterable[AskedProcess], files: Iterable[AskedFile]
) -> Iterator[AskedName]:
    users = {number for kind, number in rights if kind == "user"} | {file.uid for file in files}
    groups = {number for kind, number in rights if kind == "group"} | {file.gid for file in files}
    for process in processes:
        users |= {process.uid, process.euid}
        groups |= {process.gid, process.egid, *process.groups}
    for number in sorted(users):
        yield AskedName("user", number, _text(find_user_name(number)), ("user", number) in rights)
    for number in sorted(groups):
        yield AskedName("group", number, _text(find_group_name(number)), ("group", number) in rights)


def _text(value: str) -> str:
    """Text that can travel: a name of a file may be no valid text."""
    return value.encode(errors="replace").decode()[:_MOST_TEXT]


class _SocketAsker:
    """Collects a tree's sockets, of these `kinds`, each inode once. `known`: the unix sockets of the host."""

    def __init__(self, ids: Iterator[int], known: Mapping[int, LiveUnixSocket], kinds: Iterable[SocketKind]) -> None:
        self._ids = ids
        self._known = known
        # CRIU saves the listener as the peer of a client that was not accepted.
        self._listeners = {client: each.inode for each in known.values() for client in each.clients}
        self._kinds = {(kind.pid, kind.fd): kind for kind in kinds}
        self._by_inode: dict[int, int] = {}
        self._asked: dict[int, sockets.Socket] = {}
        self._rows: dict[int, dict[int, InetRow]] = {}

    def ask(self, found: Descriptor) -> int:
        """Return the id of a socket; 0 for one of a kind that needs nothing of the host."""
        inode = found.socket_inode
        kind = self._kinds.get((found.pid, found.fd))
        if inode not in self._by_inode and kind is not None and kind.family in _ASKED:
            self._by_inode[inode] = next(self._ids)
            self._asked[inode] = self._describe(self._by_inode[inode], inode, kind)
        return self._by_inode.get(inode, 0)

    def list(self) -> tuple[sockets.Socket, ...]:
        """Return all sockets that were asked about, and those outside the tree to which they are connected."""
        found = [*self._asked.values()]
        # CRIU connects a datagram socket to the name of its peer again.
        unix = [each for each in found if isinstance(each, sockets.UnixSocket)]
        for inode in {each.peer for each in unix if each.type == sockets.DATAGRAM} - self._by_inode.keys():
            if (live := self._known.get(inode)) is not None and live.name.startswith(("/", "@")):
                name, number = os.fsencode(live.name), next(self._ids)
                found.append(sockets.UnixSocket(number, inode, sockets.DATAGRAM, sockets.CLOSE, name, external=True))
        return tuple(found)

    def _describe(self, number: int, inode: int, kind: SocketKind) -> sockets.Socket:
        word = _TYPES.get(kind.kind, str(kind.kind))
        match kind.family:
            case socket.AF_UNIX:
                live = self._known.get(inode)
                state = sockets.ESTABLISHED if live and (live.peer or live.is_connected) else sockets.CLOSE
                name = os.fsencode(_find_name(kind, live)) if live else b""
                peer = live.peer if live and live.peer else self._listeners.get(inode, 0)
                return sockets.UnixSocket(number, inode, word, state, name, peer=peer)
            case socket.AF_PACKET:
                return sockets.PacketSocket(number, word, interface=_device(kind))
            case socket.AF_NETLINK:
                port = next((port for found, _, port in read_netlink(kind.pid) if found == inode), 0)
                return sockets.NetlinkSocket(number, inode, kind.protocol, port)
        row, nowhere, state = self._row(kind.pid, inode), sockets.Address(_ANY[kind.family], 0), sockets.CLOSE
        if row:
            # The kernel's table has other words.
            state = row.state.lower().replace("_", "-").replace("wait1", "wait-1").replace("wait2", "wait-2")
        return sockets.InetSocket(
            id=number,
            inode=inode,
            family=kind.family,
            type=word,
            protocol=_PROTOCOLS.get(kind.protocol, str(kind.protocol)),
            state=state,
            source=_parse_address(row.local) if row else nowhere,
            destination=_parse_address(row.remote) if row else nowhere,
            interface=_interface(kind),
        )

    def _row(self, pid: int, inode: int) -> InetRow | None:
        with suppress(OSError):
            space = proc.namespace(pid, "net")
            if space not in self._rows:
                self._rows[space] = {row.inode: row for table in _TABLES for row in read_inet(pid, table)}
            return self._rows[space].get(inode)
        return None


def _find_name(kind: SocketKind, live: LiveUnixSocket) -> str:
    """The name to which a restore binds the socket: the path is absolute; empty if there is none."""
    if not live.name or live.name.startswith("@"):
        return live.name
    for _, borrowed in borrow_each(kind.pid, (kind.fd,)):
        with suppress(OSError), opened_file(borrowed) as file:
            path = str(Path(f"/proc/self/fd/{file}").readlink())
            # CRIU takes the name of bind(2), and the directory in which its file is now.
            if path.endswith(DELETED):
                return ""
            return live.name if live.name.startswith("/") else f"{path.removesuffix(live.name)}{live.name}"
    return ""


def _parse_address(text: str) -> sockets.Address:
    host, _, port = text.rpartition(":")
    return sockets.Address(host.strip("[]"), int(port))


def _device(kind: SocketKind) -> int:
    """The number of the network device to which a packet socket is bound; 0 if it is bound to none."""
    return _ask_socket(kind, lambda held: socket.if_nametoindex(held.getsockname()[0]), 0)


def _interface(kind: SocketKind) -> str:
    """The interface that an internet socket is bound to; empty if it is bound to none."""
    option = socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LONGEST_INTERFACE
    return _ask_socket(kind, lambda held: held.getsockopt(*option), b"").partition(b"\0")[0].decode(errors="replace")


def _ask_socket(kind: SocketKind, question: Callable[[socket.socket], Answer], unknown: Answer) -> Answer:
    """Ask a socket that is borrowed from its process; `unknown` if it does not answer."""
    for _, borrowed in borrow_each(kind.pid, (kind.fd,)):
        with suppress(OSError), as_socket(borrowed) as held:
            return question(held)
    return unknown
